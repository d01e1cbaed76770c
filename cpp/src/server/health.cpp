// The messages are protobuf's StringValue and Int32Value, which have the fields of grpc.health.v1.HealthCheckRequest and
// HealthCheckResponse. So a program may contain the generated code of health.proto, from gRPC C++ for instance: protobuf ends programs that
// have that of one file twice.
#include <google/protobuf/wrappers.pb.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include <nearcall/health.hpp>

#include "driver/loop.hpp"

namespace nearcall {
namespace {

using request = google::protobuf::StringValue;
using response = google::protobuf::Int32Value;

constexpr int service_unknown = 3;

/// A Watch that waits for a change. It may be told of one when its call has ended.
struct watcher {
  watcher(std::string s, detail::loop& l) : service(std::move(s)), loop(l), handle(l.handle()) {}
  const std::string service;
  detail::loop& loop;
  const std::shared_ptr<detail::loop_handle> handle;
  detail::waiter waiter;

  struct awaiter {
    watcher* w;
    detail::suspension suspended = {};
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> h) { suspended.begin(w->waiter, h); }
    void await_resume() { suspended.end(); }
  };
  awaiter change() { return {this}; }
};

}  // namespace

struct health::state {
  std::mutex mutex;
  std::map<std::string, int, std::less<>> statuses{{"", serving}};
  std::set<std::shared_ptr<watcher>> watchers;
  bool is_shut_down = false;

  int find(std::string_view service) {
    std::lock_guard l(mutex);
    auto at = statuses.find(service);
    return at == statuses.end() ? service_unknown : at->second;
  }
  /// Under the mutex.
  void changed(std::string_view service) {
    for (auto& w : watchers)
      if (w->service == service) w->handle->post([w] { w->loop.wake(w->waiter); });
  }

  static task<status> watch(std::shared_ptr<state> s, context& c, const request& q, writer<response>& out) {
    struct registration {
      state& of;
      std::shared_ptr<watcher> w;
      registration(state& s, std::shared_ptr<watcher> added) : of(s), w(std::move(added)) {
        std::lock_guard l(of.mutex);
        of.watchers.insert(w);
      }
      ~registration() {
        std::lock_guard l(of.mutex);
        of.watchers.erase(w);
      }
    } registered(*s, std::make_shared<watcher>(q.value(), c.driver().internal()));
    watcher& w = *registered.w;
    std::stop_callback cancelled(c.stop_token(), [&w] { w.loop.wake(w.waiter); });
    response last;
    last.set_value(-1);
    while (!c.cancelled()) {
      int now = s->find(w.service);
      if (now == last.value()) {
        co_await w.change();
        continue;
      }
      last.set_value(now);
      if (!co_await out.write(last)) break;
    }
    co_return status(code::cancelled, "Stream has ended.");
  }
};

health::health() : state_(std::make_shared<state>()) {}
health::~health() = default;

void health::set_status(std::string_view name, serving_status s) {
  std::lock_guard l(state_->mutex);
  if (state_->is_shut_down) return;
  state_->statuses.insert_or_assign(std::string(name), s);
  state_->changed(name);
}

void health::shut_down() {
  std::lock_guard l(state_->mutex);
  state_->is_shut_down = true;
  for (auto& [name, s] : state_->statuses) {
    s = not_serving;
    state_->changed(name);
  }
}

void health::add_to(detail::method_table& t) {
  t.unary<request, response>("/grpc.health.v1.Health/Check", [s = state_](context&, const request& q, response& r) -> task<status> {
    int found = s->find(q.value());
    if (found == service_unknown) return status(code::not_found, "unknown service");
    r.set_value(found);
    return status();
  });
  t.server_streaming<request, response>("/grpc.health.v1.Health/Watch",
                                        [s = state_](context& c, const request& q, writer<response>& w) { return state::watch(s, c, q, w); });
}

}  // namespace nearcall
