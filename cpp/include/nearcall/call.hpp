// Calls from the client's side: what generated stubs return.
#pragma once

#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include <nearcall/driver.hpp>
#include <nearcall/metadata.hpp>
#include <nearcall/status.hpp>
#include <nearcall/task.hpp>

namespace google::protobuf {
class Arena;
class MessageLite;
}

namespace nearcall {

class client_interceptor;
class context;

namespace wire {
struct profile;
struct profiles;
}

/// A stop token by reference. It is copied when the call is made.
class stop_view {
 public:
  stop_view() = default;
  stop_view(const std::stop_token& t) : token_(&t) {}
  explicit operator bool() const { return token_ && token_->stop_possible(); }
  const std::stop_token& operator*() const { return *token_; }

 private:
  const std::stop_token* token_ = nullptr;
};

/// The options of one call. It holds references, not copies: write it where the call is made.
struct call_options {
  /// How long the call may take; 0, or more than 100 years, for no limit. A call that takes longer fails with DeadlineExceeded; with a
  /// negative timeout it fails at once.
  std::chrono::microseconds timeout{0};
  /// Metadata to send.
  metadata_view md = {};
  /// Cancels the call when a stop is requested, from any thread.
  stop_view stop = {};
  /// Waits for a connection instead of failing with Unavailable while the server cannot be reached.
  bool wait_for_ready = false;
  /// The largest reply that is accepted, in bytes; 0 for the channel's limit.
  std::size_t max_receive = 0;
  /// Compresses messages: `gzip`, if the library was built with zlib.
  std::string_view compressor = {};
  /// The call of a handler that this call is made for. The new call gets its deadline if that is earlier, and is cancelled with it.
  const context* parent = nullptr;
  /// The message to decode a single reply into; by default one in the result. It must outlive the result, and belongs to
  /// the driver's thread.
  google::protobuf::Arena* arena = nullptr;
};

namespace detail {

class session;
class client_call;
class loop_handle;
struct outbox;
struct pieces;

/// The bytes of a message that has arrived, in steps: one, or several of up to 64 KiB.
class incoming {
 public:
  virtual std::string_view next() = 0;  // empty at the end, or if the bytes cannot be read
  std::size_t size = 0;
  bool compressed = false;              // with gzip

 protected:
  ~incoming() = default;
};

/// Encodes and decodes messages. Templates hand over pointers to messages of the right type.
class codec {
 public:
  virtual std::size_t size(const void* message) const = 0;
  /// Writes the bytes that size() has announced just before.
  virtual void encode(const void* message, char* to) const = 0;
  virtual bool decode(void* message, incoming& bytes) const = 0;

 protected:
  ~codec() = default;
};
const codec& protobuf();
/// Decodes a message of at most `limit` bytes, after decompressing it if it is compressed. The status is the
/// reason for a failure.
status decode(void* into, incoming& m, std::size_t limit);

/// A message of a codec.
struct message {
  const nearcall::detail::codec* codec = nullptr;
  const void* object = nullptr;
};
template <class M>
message encodable(const M& m) {
  return {&protobuf(), static_cast<const google::protobuf::MessageLite*>(&m)};
}
template <class M>
void* decodable(M& m) {
  return static_cast<google::protobuf::MessageLite*>(&m);
}

/// A message in an arena, or null without one.
template <class M>
M* make_in(google::protobuf::Arena* a) {
  return a ? M::default_instance().New(a) : nullptr;
}

/// The state of an open call in a session. The caller or the handler owns the object; the session keeps a pointer.
class call : protected timer {
 public:
  call();
  call(const call&) = delete;
  call& operator=(const call&) = delete;
  virtual ~call();

  bool open() const { return session_ != nullptr; }

 protected:
  friend class session;
  friend class inbox;
  friend struct session_probe;
  // Events of the call. None of these runs a coroutine.
  /// A callee's call has a number now.
  virtual void on_open() {}
  virtual void on_header(metadata&& m) = 0;
  virtual void on_message(incoming& m) = 0;
  virtual void on_half_close() {}
  /// All queued messages were sent.
  virtual void on_room() {}
  /// The callee's deadline has passed. False: no handler runs that would end the call.
  virtual bool on_deadline() { return true; }
  /// Once, and last: the call is no longer open. `unprocessed`: no handler saw it. It may destroy the call.
  virtual void on_end(status&& s, metadata&& trailer, bool unprocessed) = 0;

  detail::session* session_ = nullptr;

  void expired() override;

  bool header_seen_ = false, message_seen_ = false;
  bool established_ = true;  // false in on_end if the peer sent no HELLO or refused the connection
  std::size_t largest_ = 0;  // message that is accepted

 private:
  std::uint64_t number_ = 0;
  std::int64_t send_credit_ = 0, receive_credit_ = 0, owed_ = 0;
  std::uint64_t piece_size_ = 0;      // of the message that comes in pieces
  std::unique_ptr<outbox> outbox_;    // bytes that wait for credit
  std::unique_ptr<pieces> pieces_;    // the part of a message in pieces that has arrived
  call *previous_ = nullptr, *next_ = nullptr;  // in the session's list of calls that wait to send
  bool compresses_ = false;    // messages that are sent
  bool decompresses_ = false;  // those that arrive, if they say so
  bool compressed_ = false;    // the message that comes in pieces
  bool ours_ = false, half_closed_ = false, in_pieces_ = false, finishing_ = false, listed_ = false;
};

/// Holds messages that have arrived until they are read, and the coroutine that waits for the next one.
class inbox {
 public:
  /// The next message has arrived. It is decoded at once if it is waited for; otherwise its bytes are kept.
  void arrived(call& c, incoming& m);
  /// Reads into `into` if a message is there. False: the next message that arrives during a wait is decoded into it.
  bool take(call& c, void* into);
  /// After a wait: whether there is a message in `into`.
  bool got() { return std::exchange(got_, false); }
  /// Why a message could not be decoded, or null.
  const status* wrong() const { return wrong_ ? &*wrong_ : nullptr; }
  void clear() { chunks_.reset(); }
  detail::waiter& waiter() { return waiter_; }

 private:
  struct chunks;  // messages with their lengths, small ones together
  struct deleter {
    void operator()(chunks*) const;
  };
  detail::waiter waiter_;
  std::unique_ptr<chunks, deleter> chunks_;
  void* into_ = nullptr;  // where the next message is wanted
  bool got_ = false;
  std::optional<status> wrong_;
};

/// Where calls are made: a channel, or the other side of a connection.
class caller {
 public:
  virtual ~caller() = default;

 private:
  friend class client_call;
  /// A call begins: the options for calls of its method.
  virtual void prepare(client_call&) {}
  /// Opens the call on a connection, now or later.
  virtual void make(client_call& c) = 0;
  /// The call no longer waits for a connection.
  virtual void forget(client_call& c) = 0;
  virtual detail::loop& loop() = 0;
};

/// A call or a sleep of a handler, which ends with the handler's call. It is in a list of that call.
class dependent {
 public:
  dependent() = default;
  dependent(const dependent&) = delete;
  dependent& operator=(const dependent&) = delete;

 protected:
  ~dependent() { depart(); }
  void depend_on(dependent*& first) {
    next_ = first;
    at_ = &first;
    if (next_) next_->at_ = &next_;
    first = this;
  }
  void depart() {
    if (!at_) return;
    *at_ = next_;
    if (next_) next_->at_ = at_;
    at_ = nullptr;
  }

 private:
  friend class server_call;
  /// The handler's call has ended, or its deadline has passed. No coroutine may be run.
  virtual void call_ended(const status& why) = 0;
  dependent* next_ = nullptr;
  dependent** at_ = nullptr;  // the pointer to this
};

/// A client's call. Retries may take it over several connections.
class client_call : public call, dependent {
 public:
  client_call(caller& on, std::string_view method, const call_options& o);
  ~client_call() override;
  void cancel();

 protected:
  friend class call_queue;
  friend class channel_core;
  friend class nearcall::client_interceptor;

  /// Begins the call with its only message, or with none for now.
  void begin(const message* request);
  /// True if all of the call was sent.
  bool send(const message& m);
  void finish_sending();
  /// Ends the call from this side.
  void fail(status s);
  void wake(waiter& w);
  /// Suspends a coroutine. If the call has ended, the loop resumes the coroutine. So a coroutine that repeats calls which fail at once
  /// lets the loop connect.
  void wait(suspension& s, waiter& w, std::coroutine_handle<> h, bool ready = false) {
    s.begin(w, h);
    if (ready || over_) wake(w);
  }
  /// Something of the call waits to be sent, or for a connection.
  bool sends() const;
  virtual void on_over(status&& s, metadata&& trailer) = 0;

  bool over_ = false;

 private:
  /// Cancels the call on its loop when a stop is requested anywhere.
  class stopper {
   public:
    stopper(std::stop_token token, detail::loop& l, client_call& c);
    ~stopper() { *call_ = nullptr; }

   private:
    struct request {
      std::shared_ptr<client_call*> call;
      std::shared_ptr<loop_handle> loop;
      void operator()() const;
    };
    std::shared_ptr<client_call*> call_;
    std::stop_callback<request> callback_;
  };
  void expired() override;
  void call_ended(const status& why) final { fail(why); }
  void on_end(status&& s, metadata&& trailer, bool unprocessed) final;
  void end(status&& s, metadata&& trailer);
  void over(status&& s, metadata&& trailer);
  void make();
  void leave();
  /// The state that only some calls need: retries and interceptors.
  struct extra;
  struct extra_deleter {
    void operator()(extra*) const;
  };
  extra& more();
  bool retries(const status& s, const metadata& trailer);
  task<status> intercept(std::size_t i);
  task<status> run();
  task<> run_interceptors();
  /// Sends the call on a connection. The channel calls this when it has one.
  void start(session& s, const wire::profiles& p, std::size_t max_receive);
  const wire::profile& profile_of(const wire::profiles& p) const;
  /// The size of the head that start would send.
  std::uint64_t head_size(const wire::profiles& p) const;
  bool keeps_a_copy() const;
  bool keep(const message& m);

  caller& on_;
  detail::loop& loop_;  // valid even after the caller is destroyed
  std::string_view method_;
  metadata md_;
  bool wait_for_ready_ = false;
  std::string compressor_;
  std::size_t max_receive_ = 0;  // 0 for the channel's
  std::optional<clock::time_point> deadline_;
  const message* request_ = nullptr;  // while the call begins
  std::string kept_;                  // the messages so far, each with its length, to send them again
  bool keeps_ = true;                 // all messages are in kept_
  bool sent_all_ = false;             // there will be no more
  client_call *before_ = nullptr, *after_ = nullptr;  // in the queue of calls that wait for a connection
  bool queued_ = false;
  const char* stopped_ = nullptr;  // why the call is cancelled before it was made
  int attempts_ = 0;
  std::optional<stopper> stop_;
  std::unique_ptr<extra, extra_deleter> extra_;
};

/// A call with one reply.
class unary_base : public client_call {
 public:
  unary_base(caller& on, std::string_view method, const call_options& o, void* reply) : client_call(on, method, o), reply_(reply) {}

 protected:
  void on_header(metadata&& m) final { header_ = std::move(m); }
  void on_message(incoming& m) final;
  void on_over(status&& s, metadata&& trailer) final;

  status status_;
  metadata header_, trailer_;
  waiter waiter_;
  waiter writer_;

 private:
  void on_room() final { wake(writer_); }
  void* reply_;
  bool received_ = false;
};

/// A call with a stream of replies.
class stream_base : public client_call {
 public:
  using client_call::client_call;
  const nearcall::status& status() const { return status_; }
  const metadata& header() const { return header_; }
  const metadata& trailer() const { return trailer_; }

 protected:
  bool read_ready(void* into);
  bool read_done();
  waiter& reads() { return inbox_.waiter(); }
  waiter& writes() { return writer_; }

 private:
  void on_header(metadata&& m) final { header_ = std::move(m); }
  void on_message(incoming& m) final;
  void on_room() final { wake(writer_); }
  void on_over(nearcall::status&& s, metadata&& trailer) final;

  nearcall::status status_;
  metadata header_, trailer_;
  inbox inbox_;
  waiter writer_;
  bool ready_ = false;
};

}  // namespace detail

/// A unary call. It begins when it is made, and is cancelled when it is destroyed before its end.
template <class Reply>
class [[nodiscard]] unary_call final : detail::unary_base {
 public:
  template <class Request>
  unary_call(detail::caller& on, std::string_view method, const Request& request, const call_options& o)
      : unary_call(on, method, o, detail::make_in<Reply>(o.arena)) {
    detail::message m = detail::encodable(request);
    begin(&m);
  }
  struct awaiter {
    unary_call* c;
    detail::suspension suspended = {};
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> h) { c->wait(suspended, c->waiter_, h); }
    result<Reply> await_resume() {
      suspended.end();
      return c->take();
    }
  };
  /// The result. It can be taken once. A coroutine that is destroyed while it waits has not taken it.
  awaiter operator co_await() { return {this}; }
  using client_call::cancel;

 private:
  unary_call(detail::caller& on, std::string_view method, const call_options& o, Reply* in_arena)
      : unary_base(on, method, o, detail::decodable(in_arena ? *in_arena : result_.reply_)), result_(in_arena) {}
  result<Reply> take() {
    result_.status_ = std::move(status_);
    result_.header_ = std::move(header_);
    result_.trailer_ = std::move(trailer_);
    return std::move(result_);
  }
  result<Reply> result_;
};

namespace detail {

/// The reading half of a stream. An awaiter lives in the frame of the coroutine that waits, even if the awaited object has a
/// name.
template <class Stream, class Reply>
struct [[nodiscard]] reading {
  Stream* s;
  struct awaiter {
    Stream* s;
    suspension suspended = {};
    bool await_ready() const { return s->read_ready(decodable(s->reply_)); }
    void await_suspend(std::coroutine_handle<> h) { s->wait(suspended, s->reads(), h); }
    Reply* await_resume() {
      suspended.end();
      return s->read_done() ? &s->reply_ : nullptr;
    }
  };
  awaiter operator co_await() const { return {s}; }
  void cancel() const { s->cancel(); }
};
/// The writing half.
template <class Stream>
struct [[nodiscard]] writing {
  Stream* s;
  bool left;
  struct awaiter {
    Stream* s;
    bool left;
    suspension suspended = {};
    bool await_ready() const { return left; }
    void await_suspend(std::coroutine_handle<> h) { s->wait(suspended, s->writes(), h, !s->sends()); }
    bool await_resume() {
      suspended.end();
      return !s->over_;
    }
  };
  awaiter operator co_await() const { return {s, left}; }
  void cancel() const { s->cancel(); }
};

}  // namespace detail

/// A call with a stream of replies.
template <class Reply>
class [[nodiscard]] server_stream final : detail::stream_base {
 public:
  template <class Request>
  server_stream(detail::caller& on, std::string_view method, const Request& request, const call_options& o) : stream_base(on, method, o) {
    detail::message m = detail::encodable(request);
    begin(&m);
  }
  /// The next reply, or null at the end. The same message is used for the next. A reply that arrives after a wait was given up goes to
  /// the next read().
  detail::reading<server_stream, Reply> read() { return {this}; }
  /// How the call ended, once read() has returned null.
  using stream_base::cancel;
  using stream_base::header;
  using stream_base::status;
  using stream_base::trailer;

 private:
  friend struct detail::reading<server_stream, Reply>;
  Reply reply_;
};

/// A call with streams in both directions. One coroutine may read and another one write, but no two read or write at a time.
template <class Request, class Reply>
class [[nodiscard]] bidi_stream final : detail::stream_base {
 public:
  bidi_stream(detail::caller& on, std::string_view method, const call_options& o) : stream_base(on, method, o) { begin(nullptr); }
  /// Sends a message, and waits until there is room for the next one: await it before the next. The message is sent even if the wait is
  /// given up. False: the call has ended, and read() says how.
  detail::writing<bidi_stream> write(const Request& m) { return {this, send(detail::encodable(m))}; }
  /// No more messages will be written.
  void done() { finish_sending(); }
  detail::reading<bidi_stream, Reply> read() { return {this}; }
  using stream_base::cancel;
  using stream_base::header;
  using stream_base::status;
  using stream_base::trailer;

 private:
  friend struct detail::reading<bidi_stream, Reply>;
  friend struct detail::writing<bidi_stream>;
  Reply reply_;
};

/// A call with a stream of requests and one reply.
template <class Request, class Reply>
class [[nodiscard]] client_stream final : detail::unary_base {
 public:
  client_stream(detail::caller& on, std::string_view method, const call_options& o)
      : client_stream(on, method, o, detail::make_in<Reply>(o.arena)) {
    begin(nullptr);
  }
  /// Sends a message, and waits until there is room for the next one: await it before the next. The message is sent even if the wait is
  /// given up. False: the call has ended, and finish() says how.
  detail::writing<client_stream> write(const Request& m) { return {this, send(detail::encodable(m))}; }
  struct [[nodiscard]] finishing {
    client_stream* c;
    struct awaiter {
      client_stream* c;
      detail::suspension suspended = {};
      bool await_ready() const { return false; }
      void await_suspend(std::coroutine_handle<> h) { c->wait(suspended, c->waiter_, h); }
      result<Reply> await_resume() {
        suspended.end();
        return c->take();
      }
    };
    awaiter operator co_await() const { return {c}; }
    void cancel() const { c->cancel(); }
  };
  /// Ends the stream of requests and waits for the reply. It can be called again if no coroutine got the reply.
  finishing finish() {
    finish_sending();
    return {this};
  }
  using client_call::cancel;

 private:
  friend struct detail::writing<client_stream>;
  client_stream(detail::caller& on, std::string_view method, const call_options& o, Reply* in_arena)
      : unary_base(on, method, o, detail::decodable(in_arena ? *in_arena : result_.reply_)), result_(in_arena) {}
  detail::waiter& writes() { return writer_; }
  result<Reply> take() {
    result_.status_ = std::move(status_);
    result_.header_ = std::move(header_);
    result_.trailer_ = std::move(trailer_);
    return std::move(result_);
  }
  result<Reply> result_;
};

}  // namespace nearcall
