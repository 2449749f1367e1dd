#include "processes/queue.h"

#include <c10/core/StreamGuard.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "processes/group.h"

namespace fastreduce {
namespace {

std::vector<c10::Device> devices_of(const std::optional<CallStream>& stream) {
  if (!stream) return {};
  return {stream->stream().device()};
}

std::mutex all_mutex;
std::vector<std::weak_ptr<Queue>> all;

std::atomic<std::thread::id> ends_python;  // the default id while Python is not ending
thread_local Queue* served = nullptr;      // the queue whose thread this is, which end_all waits for

}  // namespace

StaysAtTheEnd::~StaysAtTheEnd() {
  const std::thread::id end = ends_python;
  if (served || end == std::thread::id() || end == std::this_thread::get_id()) return;
  for (;;) pause();
}

void GoesOnHere::check(const std::string& call) const {
  if (getpid() == pid_) return;
  const std::string why = ": begun before a fork, by the process that goes on with it; wait there";
  throw c10::DistBackendError({__func__, __FILE__, __LINE__}, call + why);
}

CallWork::CallWork(int rank, c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs,
                   uint64_t sequence, std::optional<CallStream> stream, std::shared_ptr<Completions> completions,
                   std::function<void()> body)
    : Work(rank, type, title, inputs),
      title_(title),
      outputs_(std::move(outputs)),
      sequence_(sequence),
      stream_(std::move(stream)),
      completions_(std::move(completions)),
      body_(std::move(body)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       devices_of(stream_))) {}

void CallWork::run() {
  std::exception_ptr error;
  std::optional<c10::StreamGuard> current;
  try {
    if (stream_) current.emplace(stream_->begin());
    const std::shared_ptr<void> beside = stream_ && beside_captures ? beside_captures() : nullptr;
    body_();
    if (stream_) stream_->stream().synchronize();
  } catch (const GroupError& e) {
    error = std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, e.what()));
  } catch (...) {
    error = std::current_exception();
  }
  body_ = nullptr;  // with the tensors that it held
  call_.ends();
  finish(error);
  if (!error) completions_->tell(call_);
  if (error)
    future_->setErrorIfNeeded(error);
  else
    future_->markCompleted(c10::IValue(outputs_));
}

bool CallWork::wait(std::chrono::milliseconds timeout) {
  const StaysAtTheEnd stays;
  if (!isCompleted()) goes_on_here_.check(title_);
  Queue::serve_until(*this);
  if (timeout != kNoTimeout) {
    std::unique_lock lock(mutex_);
    TORCH_CHECK(cv_.wait_for(lock, limited(timeout), [this] { return completed_; }), "wait timed out: ", title_,
                ", call ", sequence_, " of rank ", rank_, "'s group, has not ended within ", timeout.count(),
                " ms and goes on; wait again, or longer");
  }
  future_->wait();  // it ends last, before its callbacks run: after this its value can be asked for
  return Work::wait(kNoTimeout);
}

void Queue::serve_until(const CallWork& work) {
  if (!served) return;
  std::unique_lock lock(served->mutex_);
  const auto is_it = [&](const c10::intrusive_ptr<CallWork>& one) { return one.get() == &work; };
  while (std::any_of(served->waiting_.begin(), served->waiting_.end(), is_it)) served->run_first(lock);
}

void Queue::submit(const c10::intrusive_ptr<CallWork>& work, bool waits) {
  // A fork does not have the thread, which may have been in a call. Here the call raises and says that this is a fork.
  if (getpid() != pid_) return work->run();
  const StaysAtTheEnd stays;
  {
    std::unique_lock lock(mutex_);
    TORCH_CHECK(!closed_, "this process group was destroyed; make a new one");
    if (serves_here()) {
      // The callback of an earlier call may wait for this one, and nobody else would serve it.
      waiting_.push_back(work);
      while (!work->isCompleted()) run_first(lock);
      return;
    }
    if (!waits || busy_ || !waiting_.empty()) {
      if (!thread_.joinable()) thread_ = std::thread([self = shared_from_this()] { self->serve(); });
      waiting_.push_back(work);
      changed_.notify_all();
      return;
    }
    busy_ = true;
  }
  work->run();
  const std::lock_guard lock(mutex_);
  busy_ = false;
  changed_.notify_all();
}

bool Queue::serves_here() const { return server_ == std::this_thread::get_id(); }

void Queue::serve() {
  served = this;
  std::unique_lock lock(mutex_);
  server_ = std::this_thread::get_id();
  for (;;) {
    changed_.wait(lock, [this] { return !busy_ && (closed_ || !waiting_.empty()); });
    if (waiting_.empty()) return;
    busy_ = true;
    run_first(lock);
    busy_ = false;
    changed_.notify_all();
  }
}

void Queue::run_first(std::unique_lock<std::mutex>& lock) {
  const auto work = waiting_.front();
  waiting_.pop_front();
  lock.unlock();
  work->run();
  lock.lock();
}

std::shared_ptr<Queue> Queue::make(std::function<void()> abort) {
  const std::shared_ptr<Queue> made(new Queue(std::move(abort)));
  const std::lock_guard lock(all_mutex);
  std::erase_if(all, [](const std::weak_ptr<Queue>& queue) { return queue.expired(); });
  all.push_back(made);
  return made;
}

void Queue::end_all() {
  ends_python = std::this_thread::get_id();
  std::vector<std::shared_ptr<Queue>> living;
  {
    const std::lock_guard lock(all_mutex);
    for (const std::weak_ptr<Queue>& queue : all)
      if (auto one = queue.lock()) living.push_back(std::move(one));
  }
  for (const std::shared_ptr<Queue>& queue : living) queue->abort();
  for (const std::shared_ptr<Queue>& queue : living) queue->close();
}

void Queue::abort() {
  if (getpid() != pid_) return;
  const std::lock_guard lock(mutex_);
  if (abort_) abort_();
}

void Queue::close() {
  if (getpid() != pid_) return;  // a fork has no thread, nor, perhaps, a free mutex
  std::unique_lock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
  if (serves_here()) {  // this thread ends when the callback returns
    while (!waiting_.empty()) run_first(lock);
    abort_ = nullptr;
    if (thread_.joinable()) thread_.detach();
    return;
  }
  changed_.wait(lock, [this] { return !busy_ && waiting_.empty(); });
  abort_ = nullptr;
  std::thread ends = std::move(thread_);
  lock.unlock();
  if (ends.joinable()) ends.join();
}

}  // namespace fastreduce
