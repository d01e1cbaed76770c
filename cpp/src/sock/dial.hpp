// Making a connection, without waiting.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "driver/loop.hpp"
#include "mux/transport.hpp"
#include "sock/address.hpp"

namespace nearcall::detail {

/// Encrypts a socket: TLS, if the program uses it.
class security {
 public:
  virtual ~security() = default;
  /// The error of the program's certificates, or empty.
  virtual std::string error() const = 0;
  /// The transport of a connected socket. A client gives the name that the server's certificate has to have.
  virtual std::unique_ptr<transport> secure(descriptor s, const std::string& server_name) const = 0;
};

namespace shm {
class budget;
}

/// Connects to a target: name resolution, its addresses, and for a unix socket the offer of shared memory. Addresses are tried in turn: the
/// next when one has failed, or has been silent for a while, and the first that answers is taken.
class dialer final : public discardable, io_handler, timer {
 public:
  using done = std::function<void(std::unique_ptr<transport>, std::string error)>;
  /// `done` is called once, from the loop; not after the dialer was destroyed.
  /// `bound` limits shared memory; null offers none. `skip` is how many addresses to leave out.
  dialer(loop& l, const target& t, std::shared_ptr<shm::budget> bound, const security* s, std::size_t skip, done d);
  ~dialer() override;
  /// The place of the address that was taken, and how many come after it.
  std::size_t taken() const { return taken_; }
  std::size_t others() const { return addresses_.size() - taken_ - 1; }

 private:
  enum class step { resolving, connecting, answering };
  /// A socket that is being connected.
  struct attempt final : discardable, io_handler {
    dialer& d;
    descriptor socket;
    std::size_t address;
    attempt(dialer& of, descriptor s, std::size_t a) : d(of), socket(std::move(s)), address(a) {
      d.loop_.poller().add(socket.get(), this);
      d.loop_.poller().want_writable(socket.get(), this, true);
    }
    ~attempt() override { leave(); }
    void on_io(bool, bool) override { d.tried(*this); }
    descriptor leave() {
      if (socket) d.loop_.poller().remove(socket.get(), this);
      return std::move(socket);
    }
  };
  void tried(attempt& a);
  void resolved(std::vector<socket_address> found, std::string error);
  void next_address();
  void connected();
  void read_answer();
  void finish(std::unique_ptr<transport> t, std::string error);
  void watch();
  void unwatch();
  void on_io(bool readable, bool writable) override;
  void expired() override;

  loop& loop_;
  target target_;
  std::shared_ptr<shm::budget> bound_;
  const security* security_;
  done done_;
  step step_ = step::resolving;
  std::vector<socket_address> addresses_;
  std::size_t at_ = 0, taken_ = 0;
  std::vector<std::unique_ptr<attempt>> attempts_;
  clock::time_point until_;
  descriptor socket_;
  bool watched_ = false;
  std::string error_, received_;
  std::vector<descriptor> descriptors_;
  std::shared_ptr<dialer*> self_;  // null inside once this is destroyed
};

}  // namespace nearcall::detail
