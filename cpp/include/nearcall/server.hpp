// Servers, and the interface of handlers.
#pragma once

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nearcall/call.hpp>
#include <nearcall/channel.hpp>
#include <nearcall/driver.hpp>
#include <nearcall/interceptor.hpp>
#include <nearcall/metadata.hpp>
#include <nearcall/status.hpp>
#include <nearcall/task.hpp>

namespace nearcall {

namespace detail {
class server_core;
class server_call;
class method_table;
}  // namespace detail

/// Who made a call.
struct peer_info {
  std::string_view network;      // `shm`, `unix` or `tcp`
  std::string_view address;
  long uid = -1;                 // of the process, over unix sockets and shared memory; otherwise -1
  bool tls = false;
  std::string_view certificate;  // the client's, in DER, if it was verified
};

/// A handler's call. It lives until the handler has returned.
class context {
 public:
  explicit context(detail::server_call& c) : call_(c) {}
  context(const context&) = delete;

  std::string_view method() const;
  /// The metadata that the client sent.
  const metadata& client_metadata() const;
  /// Metadata for the client: the header is sent with the first message or the status, the trailer with the status.
  metadata& header();
  metadata& trailer();
  std::optional<clock::time_point> deadline() const;
  /// The client has cancelled the call, its deadline has passed, or the connection has ended.
  bool cancelled() const;
  /// Asked to stop when the call is cancelled.
  std::stop_token stop_token();
  /// Awaitable: true after a time, or false as soon as the call is cancelled. The time begins with the first wait, and runs on if that
  /// wait is given up.
  class sleeper;
  sleeper sleep_for(std::chrono::nanoseconds d);
  peer_info peer() const;
  nearcall::driver& driver() const;
  /// Calls the client over the connection that the call came over. It is valid as long as the context.
  detail::caller& client();

 private:
  friend class detail::client_call;
  detail::server_call& call_;
};

class [[nodiscard]] context::sleeper final : detail::timer, detail::dependent {
 public:
  sleeper(detail::server_call& c, std::chrono::nanoseconds d) : call_(c), duration_(d) {}
  ~sleeper();
  struct awaiter {
    sleeper* s;
    detail::suspension suspended = {};
    bool await_ready() const { return s->slept_ || !s->begin(); }
    void await_suspend(std::coroutine_handle<> h) { suspended.begin(s->waiter_, h); }
    bool await_resume() {
      suspended.end();
      return std::exchange(s->slept_, false);
    }
  };
  awaiter operator co_await() { return {this}; }

 private:
  bool begin();
  void expired() override;
  void call_ended(const status&) override;
  detail::server_call& call_;
  std::chrono::nanoseconds duration_;
  bool slept_ = false;
  detail::waiter waiter_;
};

inline context::sleeper context::sleep_for(std::chrono::nanoseconds d) { return {call_, d}; }

namespace detail {

class serving;

/// A call of the server's side. It destroys itself when its handler has returned and the call has ended.
class server_call : public call, running_handler {
 public:
  static void* operator new(std::size_t n) { return take_memory(n); }
  static void operator delete(void* p, std::size_t n) noexcept { give_memory(p, n); }
  server_call();
  ~server_call() override;
  nearcall::context& context() { return context_; }

 protected:
  friend class nearcall::context;
  friend class client_call;
  friend class serving;

  /// Runs the handler, from the loop.
  virtual task<status> handle() = 0;
  /// The handler may begin.
  void ready();
  /// The reply of a unary call.
  virtual const message* reply() { return nullptr; }
  virtual void on_cancelled() {}
  void wake(waiter& w);
  /// Suspends a coroutine. If the wait is already over, the loop resumes the handler. So a handler that never waits does not
  /// block the loop.
  void wait(suspension& s, waiter& w, std::coroutine_handle<> h, bool ended) {
    s.begin(w, h);
    if (ended) wake(w);
  }
  /// The header goes first, once.
  void send_header_once();
  bool cancelled() const { return cancelled_; }
  /// Ends the call while its handler runs.
  void fail(const status& s);

  template <class M>
  friend class call_message;
  friend class reply_writer;
  friend class nearcall::server_interceptor;

 private:
  struct starter final : due {
    server_call& c;
    explicit starter(server_call& of) : c(of) {}
    void run() override { c.start(); }
    bool pending() const { return listed(); }
    void drop() { unlink(); }
  };
  /// Asks the stop source to stop. The loop does it, because the handler's callbacks may do anything.
  struct stopper final : due {
    server_call& c;
    explicit stopper(server_call& of) : c(of) {}
    void run() override { c.request_stop(); }
    bool pending() const { return listed(); }
    void drop() { unlink(); }
  };
  void start();
  void request_stop();
  task<status> intercept(std::size_t i);
  void on_header(metadata&&) final {}
  bool on_deadline() final;
  void on_end(status&&, metadata&&, bool) final;
  void cancel(code c, const char* why);
  void handled(status s);
  void release();
  void destroy() final;
  const void* owner() const final;
  bool runs() const final;
  void* take_spare(const void* type);
  void keep_spare(const void* type, void* object, void (*destroy)(void*), std::size_t bytes);

  nearcall::context context_{*this};
  std::shared_ptr<serving> serving_;  // the connection
  std::string_view method_;
  metadata client_metadata_, header_, trailer_;
  std::optional<clock::time_point> deadline_;
  std::stop_source stop_{std::nostopstate};
  stopper stopper_{*this};
  dependent* dependents_ = nullptr;
  starter starter_{*this};
  const std::uint64_t origin_;  // of its coroutines
  server_call *before_ = nullptr, *after_ = nullptr;  // neighbours in the list of calls that wait to run their handlers
  bool queued_ = false, started_ = false, cancelled_ = false, header_sent_ = false;
  task<status> task_{status{}};
  std::coroutine_handle<> awaits_task_;  // while the handler is suspended
  int references_ = 2;  // of the session and of the handler
};

/// Starts a new call of a method.
class method_handler {
 public:
  virtual ~method_handler() = default;
  /// Its messages live in an arena if `arena` says so.
  virtual std::unique_ptr<server_call> call(bool arena) = 0;
};

class method_table {
 public:
  virtual void add(std::string_view name, std::unique_ptr<method_handler> m) = 0;

  template <class Request, class Reply, class F>
  void unary(std::string_view name, F f);
  template <class Request, class Reply, class F>
  void server_streaming(std::string_view name, F f);
  template <class Request, class Reply, class F>
  void client_streaming(std::string_view name, F f);
  template <class Request, class Reply, class F>
  void bidi(std::string_view name, F f);

 protected:
  ~method_table() = default;
};

/// A call with one request, which is there when the handler begins.
class one_request_call : public server_call {
 protected:
  void on_message(incoming& m) final;
  void on_half_close() final { ready(); }
  task<status> handle() final;
  virtual void* request(std::size_t bytes) = 0;
  virtual task<status> handle_request() = 0;

 private:
  int received_ = 0;
  status wrong_;  // why the request could not be decoded
};

/// A call whose requests are read one by one.
class request_stream_call : public server_call {
 protected:
  void on_open() final { ready(); }
  void on_message(incoming& m) final;
  void on_half_close() final;
  void on_cancelled() override;
  bool read_ready(void* into);
  bool read_done();
  void wait_to_read(suspension& s, std::coroutine_handle<> h) { wait(s, inbox_.waiter(), h, half_closed_seen_ || cancelled() || inbox_.wrong()); }

 private:
  inbox inbox_;
  bool half_closed_seen_ = false, ready_ = false;
};

/// Writes the messages of a stream of replies.
class reply_writer {
 public:
  explicit reply_writer(server_call& c) : call_(c) {}
  bool write(const message& m);  // true if all has left
  bool ended() const;
  void wait(suspension& s, std::coroutine_handle<> h) { call_.wait(s, waiter_, h, ended() || !sends()); }
  detail::waiter& waiter() { return waiter_; }

 private:
  bool sends() const;
  server_call& call_;
  detail::waiter waiter_;
};

}  // namespace detail

/// Where a handler writes its replies.
template <class Reply>
class writer {
 public:
  explicit writer(detail::reply_writer& w) : writer_(w) {}
  writer(const writer&) = delete;
  struct [[nodiscard]] writing {
    detail::reply_writer* w;
    bool left;
    struct awaiter {
      detail::reply_writer* w;
      bool left;
      detail::suspension suspended = {};
      bool await_ready() const { return left; }
      void await_suspend(std::coroutine_handle<> h) { w->wait(suspended, h); }
      bool await_resume() {
        suspended.end();
        return !w->ended();
      }
    };
    awaiter operator co_await() const { return {w, left}; }
  };
  /// Sends a message, and waits until there is room for the next one: await it before the next. The message is sent even if the wait is
  /// given up. False: the call has ended, and the handler should return.
  writing write(const Reply& m) { return {&writer_, writer_.write(detail::encodable(m))}; }

 private:
  detail::reply_writer& writer_;
};

namespace detail {

/// The arena of a call, if it has one.
class call_arena {
 public:
  explicit call_arena(bool wanted);
  ~call_arena();
  call_arena(const call_arena&) = delete;
  google::protobuf::Arena* get() const { return arena_; }

 private:
  google::protobuf::Arena* arena_;
};

constexpr std::size_t least_spare = 32 << 10;

/// A message of a call: in its arena, or here. A message here reuses the memory of a large message of an earlier call, and leaves it to a
/// later one.
template <class M>
class call_message {
 public:
  explicit call_message(const call_arena& a) : in_arena_(make_in<M>(a.get())) {
    if (!in_arena_) own_.emplace();
  }
  M& operator*() { return in_arena_ ? *in_arena_ : *own_; }

  void take_spare(server_call& c) {
    if (in_arena_) return;
    std::unique_ptr<spare> s(static_cast<spare*>(c.take_spare(&M::default_instance())));
    if (!s) return;
    own_->Swap(&s->message);
    bytes_ = s->bytes;
  }
  /// The call ends. `bytes` is the size of the message.
  void leave(server_call& c, std::size_t bytes) {
    bytes_ = std::max(bytes_, bytes);
    if (in_arena_ || bytes_ < least_spare) return;
    own_->Clear();
    c.keep_spare(&M::default_instance(), new spare{std::move(*own_), bytes_}, [](void* s) { delete static_cast<spare*>(s); }, bytes_);
  }

 private:
  struct spare {
    M message;
    std::size_t bytes;  // of the largest message that it held
  };
  M* in_arena_;
  std::optional<M> own_;
  std::size_t bytes_ = 0;
};

template <class Request>
class typed_request_stream : public request_stream_call {
 public:
  explicit typed_request_stream(bool arena) : arena_(arena) {}
  struct [[nodiscard]] reading {
    typed_request_stream* s;
    struct awaiter {
      typed_request_stream* s;
      suspension suspended = {};
      bool await_ready() const { return s->read_ready(decodable(*s->request_)); }
      void await_suspend(std::coroutine_handle<> h) { s->wait_to_read(suspended, h); }
      Request* await_resume() {
        suspended.end();
        return s->read_done() ? &*s->request_ : nullptr;
      }
    };
    awaiter operator co_await() const { return {s}; }
  };
  reading next() { return {this}; }

 protected:
  const call_arena arena_;

 private:
  call_message<Request> request_{arena_};
};
}  // namespace detail

/// Where a handler reads its requests.
template <class Request>
class reader {
 public:
  explicit reader(detail::typed_request_stream<Request>& s) : stream_(s) {}
  reader(const reader&) = delete;
  /// The next request, or null at the end. The same message is used for the next. A request that arrives after a wait was given up goes
  /// to the next read().
  auto read() { return stream_.next(); }

 private:
  detail::typed_request_stream<Request>& stream_;
};

/// Both.
template <class Request, class Reply>
class stream : public reader<Request>, public writer<Reply> {
 public:
  stream(detail::typed_request_stream<Request>& s, detail::reply_writer& w) : reader<Request>(s), writer<Reply>(w) {}
};

namespace detail {

/// A call whose one request lives in it.
template <class Request>
class typed_request_call : public one_request_call {
 protected:
  explicit typed_request_call(bool arena) : arena_(arena) {}
  ~typed_request_call() override { request_.leave(*this, received_); }
  const call_arena arena_;
  const Request& request() { return *request_; }

 private:
  void* request(std::size_t bytes) final {
    received_ = bytes;
    if (bytes >= least_spare) request_.take_spare(*this);
    return decodable(*request_);
  }
  call_message<Request> request_{arena_};
  std::size_t received_ = 0;
};

template <class Request, class Reply, class F>
class unary_handler final : public typed_request_call<Request> {
 public:
  unary_handler(F& f, bool arena) : typed_request_call<Request>(arena), f_(f) {}
  ~unary_handler() override { reply_.leave(*this, encoded_.object ? std::size_t((*reply_).GetCachedSize()) : 0); }

 private:
  task<status> handle_request() override {
    reply_.take_spare(*this);
    return f_(this->context(), this->request(), *reply_);
  }
  const message* reply() override {
    encoded_ = encodable(*reply_);
    return &encoded_;
  }
  F& f_;
  call_message<Reply> reply_{this->arena_};
  message encoded_;
};

template <class Request, class Reply, class F>
class server_streaming_handler final : public typed_request_call<Request> {
 public:
  server_streaming_handler(F& f, bool arena) : typed_request_call<Request>(arena), f_(f) {}

 private:
  task<status> handle_request() override { return f_(this->context(), this->request(), writer_); }
  void on_room() override { this->wake(writes_.waiter()); }
  void on_cancelled() override { this->wake(writes_.waiter()); }
  F& f_;
  reply_writer writes_{*this};
  writer<Reply> writer_{writes_};
};

template <class Request, class Reply, class F>
class client_streaming_handler final : public typed_request_stream<Request> {
 public:
  client_streaming_handler(F& f, bool arena) : typed_request_stream<Request>(arena), f_(f) {}

 private:
  task<status> handle() override { return f_(this->context(), reader_, *reply_); }
  const message* reply() override {
    encoded_ = encodable(*reply_);
    return &encoded_;
  }
  F& f_;
  reader<Request> reader_{*this};
  call_message<Reply> reply_{this->arena_};
  message encoded_;
};

template <class Request, class Reply, class F>
class bidi_handler final : public typed_request_stream<Request> {
 public:
  bidi_handler(F& f, bool arena) : typed_request_stream<Request>(arena), f_(f) {}

 private:
  task<status> handle() override { return f_(this->context(), stream_); }
  void on_room() override { this->wake(writes_.waiter()); }
  void on_cancelled() override {
    request_stream_call::on_cancelled();
    this->wake(writes_.waiter());
  }
  F& f_;
  reply_writer writes_{*this};
  stream<Request, Reply> stream_{*this, writes_};
};

template <class Handler, class F>
class method_of final : public method_handler {
 public:
  explicit method_of(F f) : f_(std::move(f)) {}
  std::unique_ptr<server_call> call(bool arena) override { return std::make_unique<Handler>(f_, arena); }

 private:
  F f_;
};

template <class Request, class Reply, class F>
void method_table::unary(std::string_view name, F f) {
  add(name, std::make_unique<method_of<unary_handler<Request, Reply, F>, F>>(std::move(f)));
}
template <class Request, class Reply, class F>
void method_table::server_streaming(std::string_view name, F f) {
  add(name, std::make_unique<method_of<server_streaming_handler<Request, Reply, F>, F>>(std::move(f)));
}
template <class Request, class Reply, class F>
void method_table::client_streaming(std::string_view name, F f) {
  add(name, std::make_unique<method_of<client_streaming_handler<Request, Reply, F>, F>>(std::move(f)));
}
template <class Request, class Reply, class F>
void method_table::bidi(std::string_view name, F f) {
  add(name, std::make_unique<method_of<bidi_handler<Request, Reply, F>, F>>(std::move(f)));
}

}  // namespace detail

/// The base of generated services.
class service {
 public:
  virtual ~service() = default;
  virtual void add_to(detail::method_table& t) = 0;
  /// A graceful stop of the server begins, on the server's thread.
  virtual void stopping() {}
};

/// A method, as generated code describes it: shop::Orders::Place for instance.
template <class Request, class Reply, bool ClientStreams, bool ServerStreams>
struct method {
  using request_type = Request;
  using reply_type = Reply;
  static constexpr bool client_streams = ClientStreams, server_streams = ServerStreams;
  std::string_view name;
};

namespace detail {

/// Adds a function as the handler of a method. A unary one may return task<Reply>, and a stream of replies may be a generator.
template <class M, class F>
void add_handler(method_table& t, const M& m, F f) {
  using request = typename M::request_type;
  using reply = typename M::reply_type;
  if constexpr (!M::client_streams && !M::server_streams) {
    if constexpr (std::is_invocable_v<F&, context&, const request&>)
      t.unary<request, reply>(m.name, [f](context& c, const request& q, reply& r) mutable -> task<status> {
        r = co_await f(c, q);
        co_return status();
      });
    else
      t.unary<request, reply>(m.name, std::move(f));
  } else if constexpr (!M::client_streams) {
    if constexpr (std::is_invocable_v<F&, context&, const request&>)
      t.server_streaming<request, reply>(m.name, [f](context& c, const request& q, writer<reply>& w) mutable -> task<status> {
        auto values = f(c, q);
        while (reply* r = co_await values.next())
          if (!co_await w.write(*r)) break;
        co_return status();
      });
    else
      t.server_streaming<request, reply>(m.name, std::move(f));
  } else if constexpr (!M::server_streams) {
    t.client_streaming<request, reply>(m.name, std::move(f));
  } else {
    t.bidi<request, reply>(m.name, std::move(f));
  }
}

}  // namespace detail

/// The options of a server.
struct server_options {
  /// How many calls each client may have open at a time; further calls wait at the client. 0 for no limit.
  std::size_t max_calls = 1000;
  /// The largest request that is accepted, in bytes.
  std::size_t max_receive = 4 << 20;
  /// Run around every handler, the first outermost. They must outlive the server.
  std::vector<server_interceptor*> interceptors = {};
  /// Each connection goes to the driver with the fewest; by default all stay on the server's driver. Each runs on its own thread.
  std::vector<driver*> drivers = {};
  /// The requests of each call, and its only reply, live in an arena of the call: with many parts they are made and freed faster.
  bool arenas = false;
  /// How much memory all connections share with their clients, in bytes. When it is used up, new clients use the socket. 0 shares none.
  std::uint64_t max_shared_memory = std::uint64_t(1) << 30;
  /// The minimum time between a client's PINGs, with and without open calls; 0 for none. A client that sends them more often is disconnected.
  std::chrono::milliseconds min_ping = std::chrono::minutes(5);
  /// After this time without anything from a client the server asks whether it is alive; 0 for never, otherwise at least 1 s.
  std::chrono::nanoseconds keepalive = std::chrono::hours(2);
  /// How long the answer may take; 0 for 20 s.
  std::chrono::nanoseconds keepalive_timeout = std::chrono::seconds(20);
};

/// Serves services over any number of listeners. It belongs to its driver's thread.
class server {
 public:
  explicit server(driver& d, server_options options = {});
  /// Stops at once, and destroys the handlers that have not returned. A handler that destroys its server goes on.
  ~server();
  server(const server&) = delete;
  server& operator=(const server&) = delete;

  /// Serves a service from now on. It must outlive the server: declare it first. With server_options::drivers it must outlive these drivers.
  void add(service& s);
  /// Serves one method, `s.on<&shop::Orders::Place>(f)`, in place of its earlier handler. f has the parameters of the service's
  /// function. Without the last one it is a coroutine that returns the reply, task<Reply>, or yields the replies, generator<Reply>, and
  /// throws nearcall::error to fail. It has to be copyable.
  template <const auto* Method, class F>
  void on(F f) {
    detail::add_handler(methods(), *Method, std::move(f));
  }
  /// Listens on a target: `unix:PATH`, `shm:PATH` or `tcp:HOST:PORT`. The status says why it cannot.
  status listen(std::string_view target, nearcall::credentials c = {});
  /// The port of the last TCP listener, for targets with port 0.
  int port() const;
  std::size_t connections() const;

  /// Takes no more connections and calls. Waits at most `most` for open ones to end and for their handlers to return.
  /// The maximum of any unit is no limit. Then it ends them: it cancels the remaining handlers, and destroys those that do not return at
  /// once.
  task<void> graceful_stop(std::chrono::nanoseconds most);
  /// Ends connections and calls at once. Their handlers are cancelled, and go on until they return or the server is destroyed.
  void stop();

 private:
  detail::method_table& methods();
  std::shared_ptr<detail::server_core> core_;
};

}  // namespace nearcall
