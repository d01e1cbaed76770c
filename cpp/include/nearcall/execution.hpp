// A driver as a scheduler of std::execution (P2300), and nearcall's awaitables as senders. It uses stdexec.
#pragma once

#include <stdexec/execution.hpp>

#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <nearcall/driver.hpp>
#include <nearcall/operation.hpp>

namespace nearcall {

/// A driver as a scheduler: what is scheduled runs on the driver's thread. Any thread may start it.
class scheduler {
 public:
  using scheduler_concept = stdexec::scheduler_tag;
  explicit scheduler(driver& d) noexcept : d_(&d) {}
  bool operator==(const scheduler&) const = default;

  struct attributes {
    driver* d;
    template <class Tag>
    scheduler query(stdexec::get_completion_scheduler_t<Tag>) const noexcept {
      return scheduler(*d);
    }
  };
  template <class Receiver>
  struct operation {
    using operation_state_concept = stdexec::operation_state_tag;
    driver* d;
    Receiver receiver;
    void start() noexcept {
      d->post([this] {
        if (stdexec::get_stop_token(stdexec::get_env(receiver)).stop_requested()) stdexec::set_stopped(std::move(receiver));
        else stdexec::set_value(std::move(receiver));
      });
    }
  };
  struct sender {
    using sender_concept = stdexec::sender_tag;
    using completion_signatures = stdexec::completion_signatures<stdexec::set_value_t(), stdexec::set_stopped_t()>;
    driver* d;
    attributes get_env() const noexcept { return {d}; }
    template <class Receiver>
    operation<Receiver> connect(Receiver r) const {
      return {d, std::move(r)};
    }
  };
  sender schedule() const noexcept { return {d_}; }

 private:
  driver* d_;
};

namespace detail {

/// A call completes with its value or is stopped; any other awaitable may also fail with an exception.
template <class A, class T = awaited_raw<A>>
struct completions {
  using value = stdexec::set_value_t(T);
  using type = std::conditional_t<of_a_call<A>, stdexec::completion_signatures<value, stdexec::set_stopped_t()>,
                                  stdexec::completion_signatures<value, stdexec::set_error_t(std::exception_ptr), stdexec::set_stopped_t()>>;
};
template <class A>
struct completions<A, void> {
  using type = stdexec::completion_signatures<stdexec::set_value_t(), stdexec::set_error_t(std::exception_ptr), stdexec::set_stopped_t()>;
};

template <class Source, class Receiver>
class sender_operation final : operation<Source> {
 public:
  using operation_state_concept = stdexec::operation_state_tag;
  sender_operation(driver& d, Source s, Receiver r) : operation<Source>(std::move(s)), d_(d), receiver_(std::move(r)) {}
  void start() noexcept {
    d_.post([this] {
      stop_.emplace(stdexec::get_stop_token(stdexec::get_env(receiver_)), on_stop{&d_, self_});
      this->begin();
    });
  }

 private:
  using awaitable_type = typename operation<Source>::awaitable_type;
  /// The receiver asks to stop, on any thread.
  struct on_stop {
    driver* d;
    std::shared_ptr<sender_operation*> operation;
    void operator()() const noexcept {
      d->post([o = operation] {
        if (!*o) return;
        (*o)->stopped_ = true;
        (*o)->cancel();
      });
    }
  };
  void ended() override {
    stop_.reset();
    *self_ = nullptr;
    if (stopped_) return stdexec::set_stopped(std::move(receiver_));
    if constexpr (!of_a_call<awaitable_type>)
      if (this->error_) return stdexec::set_error(std::move(receiver_), std::move(this->error_));
    if constexpr (std::is_void_v<awaited_raw<awaitable_type>>) {
      stdexec::set_value(std::move(receiver_));
    } else {
      auto value = std::move(*this->value_);  // the receiver may destroy the operation
      stdexec::set_value(std::move(receiver_), std::move(value));
    }
  }

  driver& d_;
  Receiver receiver_;
  std::shared_ptr<sender_operation*> self_ = std::make_shared<sender_operation*>(this);
  std::optional<stdexec::stop_callback_for_t<stdexec::stop_token_of_t<stdexec::env_of_t<Receiver>>, on_stop>> stop_;
  bool stopped_ = false;
};

template <class Source>
struct awaitable_sender {
  using sender_concept = stdexec::sender_tag;
  using completion_signatures = typename completions<typename source_of<Source>::awaitable_type>::type;
  driver* d;
  Source source;
  scheduler::attributes get_env() const noexcept { return {d}; }
  template <class Receiver>
  sender_operation<Source, Receiver> connect(Receiver r) && {
    return {*d, std::move(source), std::move(r)};
  }
  template <class Receiver>
    requires std::copy_constructible<Source>
  sender_operation<Source, Receiver> connect(Receiver r) const& {
    return {*d, source, std::move(r)};
  }
};

}  // namespace detail

/// A sender that awaits something of nearcall on the driver's thread. Any thread may start it; it completes on the driver's thread.
///
///     auto both = stdexec::when_all(nearcall::as_sender(d, [&] { return orders.Place(q); }),
///                                   nearcall::as_sender(d, [&] { return orders.Place(other); }));
///
/// The awaitable is a function that returns a call, a read or a write of a stream, or anything else that nearcall's coroutines await; or
/// a task, which is moved; or a call with a name, which has to live as long. The function runs on the driver's thread.
///
/// A call, a read or a write completes with its value. Anything else may fail with a std::exception_ptr. When the receiver asks to stop,
/// the call is cancelled, and the sender is stopped.
template <class A>
auto as_sender(driver& d, A&& awaitable) {
  using source = detail::source_from<A>;
  static_assert(source::keeps || source::is_named, "it would be gone: give it a name, or as_sender() a function that returns it");
  static_assert(source::keeps || detail::of_a_call<std::remove_cvref_t<A>>,
                "only calls, and reads and writes of streams, may have a name: move a task");
  return detail::awaitable_sender<typename source::type>{&d, source::of(awaitable)};
}

}  // namespace nearcall
