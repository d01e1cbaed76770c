// Listeners, the connections that they take, and how a server stops.
#include <nearcall/server.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "server/greeting.hpp"
#include "server/serving.hpp"
#include "shm/budget.hpp"
#include "sock/dial.hpp"
#include "sock/socket.hpp"
#include "sock/socket_file.hpp"

namespace nearcall::detail {

class home;

/// A connection of a server.
struct connection final : session_owner, discardable {
  connection(home& h, std::unique_ptr<transport> t, const session_options& o);
  /// A session that is still open tells `serving` that it ends.
  ~connection() override { session.reset(); }

  call* accept(detail::session&, wire::head_block& head, status& refusal) override { return serving->accept(head, refusal); }
  void on_hello(detail::session&) override { serving->start_waiting(); }
  void on_vacancy(detail::session&) override { serving->start_waiting(); }
  void on_end(detail::session&, const std::string&) override { serving->ended(); }
  void on_closed(detail::session&) override;

  class home& owner;
  std::size_t index = 0;  // in its home
  std::unique_ptr<detail::session> session;
  std::shared_ptr<detail::serving> serving;
};

/// The connections of one driver. Only that driver's thread uses it, except `count`.
class home {
 public:
  home(detail::loop& l, std::shared_ptr<const services> s, const server_options& o) : loop(l), table(std::move(s)), options(o) {}

  void take(std::unique_ptr<transport> t, std::string_view arrived, bool only_memory, bool may_be_asked) {
    session_options o;
    o.server = true;
    o.may_be_asked = may_be_asked && !t->looked_at();
    o.takes_calls = true;
    o.calls = options.max_calls;
    o.max_receive = options.max_receive;
    if (options.keepalive.count() > 0) o.keepalive = std::max<std::chrono::nanoseconds>(options.keepalive, 1s);
    if (options.keepalive_timeout.count() > 0) o.keepalive_timeout = options.keepalive_timeout;
    o.keepalive_without_calls = true;
    o.min_ping = o.min_idle_ping = options.min_ping;
    bool refused = only_memory && !t->looked_at();
    connections_.push_back(std::make_unique<connection>(*this, std::move(t), o));
    connection& c = *connections_.back();
    c.index = connections_.size() - 1;
    if (refused) return c.session->refuse("this server takes calls over shared memory only");
    if (draining_) c.session->drain();
    c.session->hear(arrived);
  }
  void remove(connection& c) {
    std::size_t i = c.index;
    loop.discard(std::move(connections_[i]));
    if (i + 1 < connections_.size()) {
      connections_[i] = std::move(connections_.back());
      connections_[i]->index = i;
    }
    connections_.pop_back();
    count--;
  }
  void drain() {
    draining_ = true;
    for (auto& c : connections_) c->session->drain();
  }
  void destroy_handlers() { loop.destroy_running_handlers(table.get()); }
  void stop() {
    draining_ = true;
    for (auto& c : std::exchange(connections_, {})) {
      c->serving->ended();
      c->session->close(wire::BYE_CLOSED, "the server was stopped");
      session::abandon(std::move(c->session));
      loop.discard(std::move(c));
      count--;
    }
  }

  detail::loop& loop;
  const std::shared_ptr<const services> table;
  const server_options options;
  std::atomic<std::size_t> count{0};  // of connections, those on their way included

 private:
  std::vector<std::unique_ptr<connection>> connections_;
  bool draining_ = false;
};

connection::connection(detail::home& h, std::unique_ptr<transport> t, const session_options& o)
    : owner(h), session(new detail::session(h.loop, std::move(t), *this, o)), serving(std::make_shared<detail::serving>(*session, h.table, o.calls, h.loop)) {}

void connection::on_closed(detail::session&) {
  owner.loop.discard(std::move(session));
  owner.remove(*this);
}

class server_core final : public std::enable_shared_from_this<server_core> {
 public:
  server_core(driver& d, server_options o) : loop(d.internal()), options(std::move(o)), table(std::make_shared<services>()) {
    table->interceptors = options.interceptors;
    table->arenas = options.arenas;
    if (options.max_shared_memory) memory_bound = std::make_shared<shm::budget>(options.max_shared_memory);
    if (options.drivers.empty()) homes.push_back(std::make_shared<home>(loop, table, options));
    for (driver* other : options.drivers) homes.push_back(std::make_shared<home>(other->internal(), table, options));
  }

  static constexpr std::size_t most_greetings = 256;

  struct listener final : io_handler, timer {
    server_core& core;
    target at;
    descriptor socket;  // closed after its file is removed
    socket_file file;
    nearcall::credentials credentials;
    listener(server_core& c, target t, nearcall::credentials cr) : core(c), at(std::move(t)), credentials(std::move(cr)) {}
    /// Returns false and the reason if it cannot.
    bool listen(std::string& error) {
      socket = at.has_file() ? file.listen(at, error) : listen_on(at, error);
      if (!socket) return false;
      core.loop.poller().add(socket.get(), this);
      return true;
    }
    ~listener() {
      if (core.loop.is_copy()) file.forget();
      core.loop.cancel(*this);
      if (socket) core.loop.poller().remove(socket.get(), this);
    }
    void on_io(bool, bool) override { (void)accept(16); }
    /// Accepts up to n connections; false if no more are there.
    bool accept(int n) {
      for (; n > 0; n--) {
        descriptor s = accept_on(socket.get());
        if (!s) {
          if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return false;
          // The connection stays in the queue, and the socket readable: look again when others may have ended.
          core.loop.poller().remove(socket.get(), this);
          core.loop.set(*this, clock::now() + 100ms);
          return false;
        }
        core.greet(*this, std::move(s));
      }
      return true;
    }
    void expired() override { core.loop.poller().add(socket.get(), this); }
  };

  void greet(listener& l, descriptor s) {
    if (l.credentials) return give(l.credentials->secure(std::move(s), ""), {}, false, true);
    if (!l.at.local()) return give(socket_transport(std::move(s), "tcp"), {}, false, true);
    bool only_memory = l.at.kind == target::scheme::shm;
    if (greetings.size() >= most_greetings && !drop_a_greeting()) return;
    greetings.push_back(std::make_unique<greeting>(loop, std::move(s), memory_bound, [this, only_memory](greeting& g, std::unique_ptr<transport> t, std::string arrived) {
      if (t) give(std::move(t), std::move(arrived), only_memory, !g.asked());
      for (auto& other : greetings)
        if (other.get() == &g) {
          loop.discard(std::move(other));
          other = std::move(greetings.back());
          greetings.pop_back();
          return;
        }
    }));
  }

  /// Silent clients keep no others out: the oldest is disconnected if it has sent nothing for a while.
  bool drop_a_greeting() {
    auto oldest = std::min_element(greetings.begin(), greetings.end(), [](auto& a, auto& b) { return a->begun() < b->begun(); });
    if (clock::now() - (*oldest)->begun() < 100ms) return false;
    loop.discard(std::move(*oldest));
    *oldest = std::move(greetings.back());
    greetings.pop_back();
    return true;
  }

  /// To the driver with the fewest connections.
  void give(std::unique_ptr<transport> t, std::string arrived, bool only_memory, bool may_be_asked) {
    if (!t) return;
    auto to = *std::min_element(homes.begin(), homes.end(), [](auto& a, auto& b) { return a->count.load() < b->count.load(); });
    to->count++;
    if (&to->loop == &loop) return to->take(std::move(t), std::move(arrived), only_memory, may_be_asked);
    auto shared = std::make_shared<std::unique_ptr<transport>>(std::move(t));  // std::function copies
    to->loop.handle()->post([to, shared, arrived = std::move(arrived), only_memory, may_be_asked] { to->take(std::move(*shared), arrived, only_memory, may_be_asked); });
  }

  std::size_t connections() const {
    std::size_t n = greetings.size();
    for (auto& h : homes) n += h->count.load();
    return n;
  }
  /// A client is connected, or the handler of a client that has left still runs.
  bool busy() const { return connections() > 0 || table->running > 0; }
  void each_home(void (home::*f)()) {
    for (auto& h : homes) {
      if (&h->loop == &loop) ((*h).*f)();
      else h->loop.handle()->post([h, f] { ((*h).*f)(); });
    }
  }
  /// No more clients can connect. Serve the connected ones first: closing the socket would cut them
  /// off.
  void stop_listening() {
    for (auto& l : listeners) {
      l->file.remove();
      while (l->accept(16)) {
      }
    }
    listeners.clear();
  }
  void drop_greetings() {
    for (auto& g : std::exchange(greetings, {})) loop.discard(std::move(g));
  }

  detail::loop& loop;
  server_options options;
  std::shared_ptr<services> table;
  std::vector<service*> added;
  std::shared_ptr<shm::budget> memory_bound;  // null: offers are declined
  std::vector<std::shared_ptr<home>> homes;
  std::vector<std::unique_ptr<listener>> listeners;
  std::vector<std::unique_ptr<greeting>> greetings;
};

/// Keeps the core: the server may be destroyed meanwhile.
task<void> stop_gracefully(std::shared_ptr<server_core> core, std::chrono::nanoseconds most) {
  for (service* s : core->added) s->stopping();
  core->stop_listening();
  core->each_home(&home::drain);
  auto begun = clock::now(), until = from_now(most);
  for (auto pause = std::chrono::microseconds(100); core->busy() && clock::now() < until; pause = std::min(pause * 2, std::chrono::microseconds(20000))) {
    co_await core->loop.driver().sleep_for(pause);
    if (clock::now() - begun > 1s) core->drop_greetings();  // they have said nothing
  }
  core->drop_greetings();
  core->each_home(&home::stop);
  // Handlers that were cancelled may return now. Send the last bytes before the caller goes on, as it may end the process.
  co_await core->loop.driver().sleep_for(std::chrono::microseconds(0));
  core->each_home(&home::destroy_handlers);
}

}  // namespace nearcall::detail

namespace nearcall {

using namespace detail;

server::server(driver& d, server_options o) : core_(std::make_shared<server_core>(d, std::move(o))) {}

server::~server() {
  stop();
  core_->each_home(&home::destroy_handlers);
}

detail::method_table& server::methods() { return *core_->table; }

void server::add(service& s) {
  core_->table->add(s);
  core_->added.push_back(&s);
}

status server::listen(std::string_view text, nearcall::credentials c) {
  target t = parse_target(text);
  if (!t.error.empty()) return {code::invalid_argument, t.error};
#ifndef __linux__
  if (t.kind == target::scheme::shm) return {code::unimplemented, "shared memory needs Linux"};
#endif
  if (c && t.local()) return {code::invalid_argument, "TLS is for TCP: over a unix socket the system knows who the client is"};
  if (c && !c->error().empty()) return {code::invalid_argument, "TLS: " + c->error()};
  std::string error;
  auto l = std::make_unique<server_core::listener>(*core_, std::move(t), std::move(c));
  if (!l->listen(error)) return {code::unavailable, error};
  core_->listeners.push_back(std::move(l));
  return {};
}

int server::port() const {
  for (auto l = core_->listeners.rbegin(); l != core_->listeners.rend(); l++) {
    if ((*l)->at.local()) continue;
    socket_address a;
    a.length = sizeof a.bytes;
    if (::getsockname((*l)->socket.get(), reinterpret_cast<sockaddr*>(&a.bytes), &a.length)) return 0;
    std::string text = to_text(a);
    return std::stoi(text.substr(text.rfind(':') + 1));
  }
  return 0;
}

std::size_t server::connections() const { return core_->connections(); }

task<void> server::graceful_stop(std::chrono::nanoseconds most) { return stop_gracefully(core_, most); }

void server::stop() {
  core_->listeners.clear();
  core_->drop_greetings();
  core_->each_home(&home::stop);
}

}  // namespace nearcall
