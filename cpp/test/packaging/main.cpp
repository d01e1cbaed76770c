// A program of somebody who uses the library: one call, to itself.
#include <nearcall/nearcall.hpp>
#include <nearcall/tls.hpp>

#include "shop.nearcall.hpp"

struct shop_service : shop::Orders_service {
  nearcall::task<nearcall::status> Place(nearcall::context&, const shop::Order& q, shop::Receipt& r) override {
    r.set_number(q.number() + 1);
    return nearcall::status();
  }
};

int main() {
  nearcall::driver d;
  shop_service service;
  nearcall::server s(d);
  s.add(service);
  if (s.listen("tcp:127.0.0.1:0", nearcall::tls_for_servers({})).ok()) return 1;  // without a certificate
  if (!s.listen("unix:shop.sock").ok()) return 1;
  nearcall::channel ch(d, "unix:shop.sock");
  shop::Order order;
  order.set_number(41);
  return nearcall::sync_wait(d, shop::Orders_stub(ch).Place(order)).value().number() == 42 ? 0 : 1;
}
