"""A simulation told a second time: in fractions, stage by stage, from what the model says in words.

For programs on buffers 0 to k-1. It shares no code with the package."""

from fractions import Fraction

from networks import conflicts, moves

from fastreduce import HOST


def rates_of(paths, capacity):
    """Max-min fair: the narrowest link is shared equally, then the rest of the others."""
    rates, free = {}, {link: Fraction(rate) for link, rate in capacity.items()}
    while len(rates) < len(paths):
        open_ = [n for n in paths if n not in rates]
        share = {
            link: free[link] / sum(link in paths[n] for n in open_)
            for n in open_
            for link in paths[n]
        }
        narrowest = min(share, key=lambda link: share[link])
        for n in [n for n in open_ if narrowest in paths[n]]:
            rates[n] = share[narrowest]
            for link in paths[n]:
                free[link] -= rates[n]
    return rates


def launches(program):
    clashes = set(conflicts(program))
    groups = []
    for index, x in enumerate(program.instructions):
        group = groups[-1] if groups else []
        same = group and program.instructions[group[0]].rank == x.rank
        if same and not any((earlier, index) in clashes for earlier in group):
            group.append(index)
        else:
            groups.append([index])
    return groups


def phases(program, group, by_kernels):
    """(from, to, times per shard) of what a launch reads first, and then writes."""
    reads, writes = [], []
    for x in (program.instructions[index] for index in group):
        if by_kernels and x.rank == HOST:
            for src in x.srcs:
                reads += [(src, HOST, 1), (HOST, HOST, 2), (HOST, 0, 1)]
            reads.append((0, 0, len(x.srcs) + 1))
            for dst in x.dsts:
                writes += [(0, HOST, 1), (HOST, HOST, 2), (HOST, dst, 1)]
            continue
        straight = (
            len(x.srcs) == len(x.dsts) == 1 and x.srcs != x.dsts and x.rank in x.srcs + x.dsts
        )
        if straight:
            reads += [(src, dst, 1) for src, dst in moves(x)]
            continue
        reads += [(src, x.rank, 1) for src in x.srcs if src != x.rank]
        reads.append((x.rank, x.rank, len(x.srcs) + 1))
        writes += [(x.rank, dst, 1) for dst in x.dsts if dst != x.rank]
    return [phase for phase in (reads, writes) if phase]


def stages_of(program, slices, by_kernels):
    """(launch, slice, phase) -> lane, transfers, the stages that it waits for."""
    groups, clashes = launches(program), conflicts(program)
    number = {index: g for g, group in enumerate(groups) for index in group}
    before = {(number[a], number[b]) for a, b in clashes if number[a] != number[b]}
    parts = [phases(program, group, by_kernels) for group in groups]
    ranks = [program.instructions[group[0]].rank for group in groups]
    lanes = [0 if by_kernels and rank == HOST else rank for rank in ranks]
    stages = {}
    for g, phases_ in enumerate(parts):
        earlier = [h for h in range(g) if lanes[h] == lanes[g]]
        for part in range(slices):
            for phase, transfers in enumerate(phases_):
                waits = {(g, part, phase - 1)} if phase else set()
                if part:
                    waits.add((g, part - 1, phase))
                elif earlier and not phase:
                    waits.add((earlier[-1], slices - 1, len(parts[earlier[-1]]) - 1))
                if not phase:
                    waits |= {(h, part, len(parts[h]) - 1) for h in range(g) if (h, g) in before}
                streams = by_kernels and ranks[g] != HOST
                stages[g, part, phase] = lanes[g], transfers, waits, streams
    return stages


def seconds(program, topology, nbytes, slices, costs):
    place = {rank: topology.devices[rank] for rank in range(program.k)}
    place[HOST] = topology.host_of(topology.devices[0])
    each = Fraction(nbytes, program.shards * slices)
    stages = stages_of(program, slices, costs.by_kernels)
    ends, starts, active, left, flowing = {}, {}, {}, {}, {}
    capacity, now, open_, begun = {}, Fraction(0), {}, set()

    def path(src, dst):
        links = topology.route(place[src], place[dst])
        for link in links:
            capacity[link] = topology.graph.edges[link]["bytes_per_s"]
        if not links:
            capacity[place[src]] = topology.graph.nodes[place[src]]["memory_bytes_per_s"]
        return links or (place[src],)

    while len(ends) < len(stages):
        for key, (lane, transfers, waits, streams) in stages.items():
            reads = {(*key[:2], key[2] - 1)} & stages.keys()
            streamed = reads if streams else set()
            if key in begun or not streamed <= begun or not waits - streamed <= ends.keys():
                continue
            begun.add(key)
            ready = max([Fraction(costs.call_s), *(flowing[other] for other in streamed)])
            for other in waits - streamed:
                elsewhere = stages[other][0] != lane
                ready = max(ready, ends[other] + Fraction(costs.event_wait_s) * elsewhere)
            ready += Fraction(costs.launch_s) * (key[2] == 0)
            open_[key] = {(key, n) for n in range(len(transfers))} | streamed
            for n, (src, dst, times) in enumerate(transfers):
                links = path(src, dst)
                latency = sum(
                    Fraction(topology.graph.edges[x]["latency_s"]) for x in links if src != dst
                )
                ramp = Fraction(costs.ramp_bytes) / min(Fraction(capacity[x]) for x in links)
                starts[key, n] = ready + latency + ramp, links, each * times
            flowing[key] = max(starts[key, n][0] for n in range(len(transfers)))
        rates = rates_of(active, capacity)
        moments = [now + left[n] / rates[n] for n in active] + [s[0] for s in starts.values()]
        then = min(moments)
        for n in active:
            left[n] -= rates[n] * (then - now)
        now = then
        for n in [n for n in active if not left[n]]:
            del active[n]
            open_[n[0]].discard(n)
        for key in sorted(open_):
            open_[key] -= ends.keys()
            if not open_[key]:
                ends.setdefault(key, now)
        for n in [n for n, (start, *_) in starts.items() if start <= now]:
            _, active[n], left[n] = starts.pop(n)
    return float(now)
