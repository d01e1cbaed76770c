// The beginning of a new connection over a unix socket: the client may offer shared memory.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "driver/loop.hpp"
#include "mux/transport.hpp"
#include "sock/descriptor.hpp"

namespace nearcall::detail {

namespace shm {
class budget;
}

/// Reads how a client begins, answers its question and its offer, and waits for the verdict. A client that is late is disconnected.
class greeting final : public discardable, io_handler, timer {
 public:
  /// `done` gets the transport and what of an ordinary beginning has arrived; or null: the client has left. It is called once.
  using done = std::function<void(greeting&, std::unique_ptr<transport>, std::string arrived)>;
  /// `bound` limits shared memory; null declines all offers.
  greeting(loop& l, descriptor s, std::shared_ptr<shm::budget> bound, done d);
  ~greeting() override;
  clock::time_point begun() const { return begun_; }
  /// The client has asked which protocol the server speaks.
  bool asked() const { return asked_; }

 private:
  void on_io(bool readable, bool writable) override;
  void expired() override { finish(nullptr); }
  void finish(std::unique_ptr<transport> t);
  void finish_as_socket();
  void unwatch();
  bool answer();

  loop& loop_;
  descriptor socket_;
  std::shared_ptr<shm::budget> bound_;
  bool watched_ = true, asked_ = false, answered_ = false;
  done done_;
  clock::time_point begun_ = clock::now();
  std::string received_;
  std::unique_ptr<transport> made_;  // of shared memory, which waits for the client's verdict
};

}  // namespace nearcall::detail
