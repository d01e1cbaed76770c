// TLS: who is accepted, what users are told, and calls over it.
#include <gtest/gtest.h>
#include <nearcall/nearcall.hpp>
#include <nearcall/tls.hpp>

#include "echo_service.hpp"
#include "identity.hpp"

namespace nearcall::test {
namespace {

using namespace std::chrono_literals;

class Tls : public testing::Test {
 protected:
  identity authority{"authority", nullptr}, stranger{"stranger", nullptr};
  identity host{"server", &authority, "DNS:localhost,IP:127.0.0.1"}, other_host{"server", &authority, "DNS:elsewhere"},
      expired{"server", &authority, "DNS:localhost,IP:127.0.0.1", -3600}, client{"client", &authority};
  driver d;
  std::unique_ptr<server> s;
  struct service : echo_service {
    bool tls = false;
    std::string certificate;
    task<status> Unary(context& c, const Message& q, Message& r) override {
      tls = c.peer().tls;
      certificate = c.peer().certificate;
      return echo_service::Unary(c, q, r);
    }
  } echo;

  std::string serve(const credentials& c) {
    s = std::make_unique<server>(d);
    s->add(echo);
    status st = s->listen("tcp:127.0.0.1:0", c);
    EXPECT_TRUE(st.ok()) << st.to_string();
    return "tcp:127.0.0.1:" + std::to_string(s->port());
  }
  credentials of(const identity& i) { return tls_for_servers({.certificate = i.certificate_pem(), .key = i.key_pem()}); }
  status call(const std::string& target, const credentials& c, std::size_t n = 10) {
    channel ch(d, target, {.credentials = c});
    Message q;
    q.set_data(std::string(n, 'x'));
    auto r = sync_wait(d, Echo_stub(ch).Unary(q, {.timeout = 10s}));
    if (r) EXPECT_EQ(r->data().size(), n);
    return r.status();
  }
};

TEST_F(Tls, CallsOfAllSizes) {
  std::string target = serve(of(host));
  credentials c = tls_for_clients({.authorities = authority.certificate_pem()});
  for (std::size_t n : {0, 1, 16383, 16384, 100000, 4000000}) EXPECT_EQ(call(target, c, n).to_string(), "OK") << n;
  EXPECT_TRUE(echo.tls);
  EXPECT_EQ(echo.certificate, "");
  std::string by_name = "tcp:localhost" + target.substr(target.rfind(':'));
  EXPECT_EQ(call(by_name, c).to_string(), "OK");
}

TEST_F(Tls, MuchInBothDirectionsAtATime) {
  std::string target = serve(of(host));
  channel ch(d, target, {.credentials = tls_for_clients({.authorities = authority.certificate_pem()})});
  d.run([&]() -> task<> {
    auto chat = Echo_stub(ch).Chat();
    auto write = [](auto& to) -> task<> {
      Message m;
      for (int i = 0; i < 200; i++) {
        m.set_data(std::string(std::size_t(i) * 3000, 'x'));
        if (!co_await to.write(m)) break;
      }
      to.done();
    };
    auto read = [](auto& from, driver& on) -> task<std::size_t> {
      std::size_t size = 0;
      for (int i = 0; auto* m = co_await from.read(); i++) {
        size += m->data().size();
        if (i % 40 == 0) co_await on.sleep_for(1ms);
      }
      co_return size;
    };
    auto [none, n] = co_await all(write(chat), read(chat, d));
    EXPECT_EQ(n, 3000u * 199 * 200 / 2);
    EXPECT_TRUE(chat.status().ok()) << chat.status().to_string();
  }());
}

TEST_F(Tls, ClientsRefuseServersThatAreNotTheirs) {
  credentials trusts = tls_for_clients({.authorities = authority.certificate_pem()});
  auto refusal = [&](const identity& i, const credentials& c) { return call(serve(of(i)), c).to_string(); };
  EXPECT_EQ(refusal(other_host, trusts), "Unavailable: connection error: TLS: the other side's certificate is not accepted: IP address mismatch");
  EXPECT_EQ(refusal(expired, trusts), "Unavailable: connection error: TLS: the other side's certificate is not accepted: certificate has expired");
  EXPECT_EQ(refusal(host, tls_for_clients({.authorities = stranger.certificate_pem()})),
            "Unavailable: connection error: TLS: the other side's certificate is not accepted: unable to get local issuer certificate");
  EXPECT_EQ(refusal(host, tls_for_clients()), "Unavailable: connection error: TLS: the other side's certificate is not accepted: unable to get local issuer certificate");
  EXPECT_EQ(refusal(other_host, tls_for_clients({.authorities = authority.certificate_pem(), .server_name = "elsewhere"})), "OK");
}

TEST_F(Tls, ServersAskForCertificates) {
  tls_options o{.authorities = authority.certificate_pem(), .certificate = host.certificate_pem(), .key = host.key_pem()};
  std::string target = serve(tls_for_servers(o));
  tls_options c{.authorities = authority.certificate_pem()};
  EXPECT_EQ(call(target, tls_for_clients(c)).code(), code::unavailable);
  c.certificate = client.certificate_pem();
  c.key = client.key_pem();
  EXPECT_EQ(call(target, tls_for_clients(c)).to_string(), "OK");
  EXPECT_NE(echo.certificate.find("client"), std::string::npos);
  c.certificate = stranger.certificate_pem();
  c.key = stranger.key_pem();
  EXPECT_EQ(call(target, tls_for_clients(c)).code(), code::unavailable);
  o.client_certificate_optional = true;
  EXPECT_EQ(call(serve(tls_for_servers(o)), tls_for_clients({.authorities = authority.certificate_pem()})).to_string(), "OK");
  EXPECT_EQ(echo.certificate, "");
}

TEST_F(Tls, SidesWithoutTls) {
  credentials trusts = tls_for_clients({.authorities = authority.certificate_pem()});
  EXPECT_EQ(call(serve({}), trusts).to_string(), "Unavailable: connection error: TLS: the other side does not speak TLS");
  EXPECT_EQ(call(serve(of(host)), {}).code(), code::unavailable);
}

TEST_F(Tls, OptionsThatAreWrong) {
  server other(d);
  EXPECT_EQ(other.listen("tcp:127.0.0.1:0", tls_for_servers({})).to_string(), "InvalidArgument: TLS: the certificate is no certificate in PEM");
  EXPECT_EQ(other.listen("tcp:127.0.0.1:0", tls_for_servers({.certificate = host.certificate_pem(), .key = client.key_pem()})).code(), code::invalid_argument);
  EXPECT_EQ(other.listen("unix:/tmp/x.sock", of(host)).code(), code::invalid_argument);
  EXPECT_EQ(call(serve(of(host)), tls_for_clients({.authorities = "nonsense"})).to_string(),
            "Unavailable: connection error: TLS: the authorities are no certificates in PEM");
}

TEST_F(Tls, WaitForReadyWaitsForAServerThatIsRight) {
  std::string target = serve(of(expired));
  channel ch(d, target, {.credentials = tls_for_clients({.authorities = authority.certificate_pem()})});
  auto r = sync_wait(d, Echo_stub(ch).Unary(Message(), {.timeout = 300ms, .wait_for_ready = true}));
  EXPECT_EQ(r.status().code(), code::deadline_exceeded);
}

}  // namespace
}  // namespace nearcall::test
