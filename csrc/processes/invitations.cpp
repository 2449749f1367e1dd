// How the ranks of one machine open each other's memory.
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "processes/front.h"

namespace fastreduce {

std::string Group::invitation() const {
  const SharedMemory::Address& at = memories_[rank_].address();
  std::ostringstream text;
  text << at.pid << ' ' << at.fd << ' ' << at.inode << ' ' << at.bytes << ' ' << front(rank_).token;
  return text.str();
}

void Group::join(const std::vector<std::string>& invitations) {
  if (invitations.size() != names_.size())
    raise(std::to_string(invitations.size()) + " invitations; want one of each of " + std::to_string(size()) +
          " ranks");
  std::vector<Invitation> invited(invitations.size());
  // Each process is watched before any memory is opened: what is watched is then what is opened, and where a peer has
  // given up because of one that ended, the one that ended is known.
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank_) invited[peer] = watch(peer, invitations[peer]);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank_) open(peer, invited[peer]);
}

Group::Invitation Group::watch(int peer, const std::string& invitation) {
  Invitation from;
  std::istringstream text(invitation);
  if (!(text >> from.at.pid >> from.at.fd >> from.at.inode >> from.at.bytes >> from.token))
    raise(invitation_of(peer) + " is '" + invitation + "'; want five numbers");
  alive_[peer] = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, from.at.pid, 0)));
  if (alive_[peer].get() < 0)
    raise(invitation_of(peer) + " names process " + std::to_string(from.at.pid) + ": " + std::strerror(errno));
  return from;
}

void Group::open(int peer, const Invitation& from) {
  try {
    memories_[peer] = SharedMemory::open(from.at);
  } catch (const std::runtime_error& error) {
    if (const int ended = first_ended_soon(); ended >= 0)
      raise("the process of rank " + names_[ended] + " has ended while the group was made");
    raise(invitation_of(peer) + ": " + error.what() + "; if that rank has given up, its own error says why");
  }
  const Front* theirs = reinterpret_cast<const Front*>(memories_[peer].data());
  const auto wanted = sizeof(Front) + 2 * staging_bytes_;
  if (from.at.bytes != wanted)
    raise(invitation_of(peer) + " leads to " + std::to_string(from.at.bytes) + " bytes of memory, and this rank has " +
          std::to_string(wanted) + "; want the same shared_bytes and version of fastreduce on all ranks");
  const bool fits = theirs->magic == kMagic && theirs->token == from.token && theirs->staging_bytes == staging_bytes_ &&
                    theirs->rank == peer && theirs->size == size();
  if (!fits)
    raise(invitation_of(peer) +
          " leads to memory of another rank, group, size or version of fastreduce; want the same version and "
          "shared_bytes on all ranks");
}

std::string Group::invitation_of(int peer) const { return "the invitation of rank " + names_[peer]; }

}  // namespace fastreduce
