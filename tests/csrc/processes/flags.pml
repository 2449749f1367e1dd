/* The protocol of csrc/processes: allreduce by "sharded", several slices in each of several calls,
   through a few slots of staging memory. Every interleaving is visited.

   What the memory holds is written as the number of the slice that it belongs to, counted over all
   calls: 0 is nothing. A cell [owner][area][slot][shard] is raw (copied in) or reduced. Shard s is
   reduced by rank s, which writes it to all, so only cells of other ranks' shards are staged. With
   -DPULL peers only read (reduce_scatter), and nothing is copied out.

   By hand: spin -run -safety flags.pml, with -DRANKS=3, or with a mutant: -DDROP_..., -DSLOTS=2. */

#ifndef RANKS
#define RANKS 2
#endif
#define CALLS 3
#define SLICES 5
#ifndef SLOTS
#define SLOTS 3
#endif

byte round[RANKS * 2];   /* by desk: the call that it is about */
byte copied[RANKS * 2];
byte executed[RANKS * 2];

#define DESK(r) ((r) * 2 + AREA)
#define CELL(r, slice, shard) ((((r) * 2 + AREA) * SLOTS + (slice) % SLOTS) * RANKS + (shard))
byte raw[RANKS * 2 * SLOTS * RANKS];
byte reduced[RANKS * 2 * SLOTS * RANKS];

#ifdef DROP_PARITY
#define AREA 0
#else
#define AREA (call % 2)
#endif
#define NUMBER(slice) ((call - 1) * SLICES + (slice) + 1)

inline copy_in(slice) {
#ifndef DROP_SLOT_WAIT
  /* peers have reduced what this slot held: slice - SLOTS of this call */
  for (peer : 0 .. RANKS - 1) {
    if
    :: slice >= SLOTS && peer != me -> (executed[DESK(peer)] >= slice - SLOTS + 1)
    :: else
    fi
  }
#endif
#ifdef PUBLISH_EARLY
  copied[DESK(me)] = slice + 1;
#endif
  for (shard : 0 .. RANKS - 1) {
    if
    :: shard != me ->
       /* whatever is thrown away must have been copied out before: by this rank, so no wait */
       raw[CELL(me, slice, shard)] = NUMBER(slice);
       reduced[CELL(me, slice, shard)] = 0
    :: else
    fi
  }
  copied[DESK(me)] = slice + 1
}

inline execute(slice) {
#ifndef DROP_COPIED_WAIT
  for (peer : 0 .. RANKS - 1) {
    (peer == me || copied[DESK(peer)] >= slice + 1)
  }
#endif
  for (peer : 0 .. RANKS - 1) {
    if
    :: peer != me ->
       assert(raw[CELL(peer, slice, me)] == NUMBER(slice));
#ifndef PULL
       raw[CELL(peer, slice, me)] = 0;
#endif
       reduced[CELL(peer, slice, me)] = NUMBER(slice)
    :: else
    fi
  }
  executed[DESK(me)] = slice + 1
}

inline copy_out(slice) {
#ifndef PULL
#ifndef DROP_DONE_WAIT
  for (peer : 0 .. RANKS - 1) {
    (peer == me || executed[DESK(peer)] >= slice + 1)
  }
#endif
  for (shard : 0 .. RANKS - 1) {
    if
    :: shard != me -> assert(reduced[CELL(me, slice, shard)] == NUMBER(slice))
    :: else
    fi
  }
#else
  skip
#endif
}

active [RANKS] proctype rank() {
  byte me = _pid, call, peer, shard, slice;
  for (call : 1 .. CALLS) {
    /* begin: the counters of a desk that nobody looks at any more */
    copied[DESK(me)] = 0;
    executed[DESK(me)] = 0;
    copy_in(0);
    round[DESK(me)] = call;
#ifndef DROP_MEETING
    for (peer : 0 .. RANKS - 1) {
      (peer == me || round[DESK(peer)] >= call)
    }
#endif
    for (slice : 0 .. SLICES - 1) {
      if
      :: slice + 1 < SLICES -> copy_in(slice + 1)
      :: else
      fi;
      execute(slice);
      if
      :: slice > 0 -> copy_out(slice - 1)
      :: else
      fi
    }
    copy_out(SLICES - 1)
  }
}
