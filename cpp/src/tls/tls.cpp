// TLS with OpenSSL, without waiting.
#include <nearcall/tls.hpp>

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "driver/loop.hpp"
#include "sock/dial.hpp"
#include "sock/socket.hpp"

namespace nearcall {
namespace detail {
namespace {

// Names for ALPN (docs/protocol.md, TLS): gRPC's, and before it nearcall's.
constexpr unsigned char h2[] = {2, 'h', '2'}, both[] = {10, 'n', 'e', 'a', 'r', 'c', 'a', 'l', 'l', '/', '1', 2, 'h', '2'};
constexpr std::size_t step = 16 << 10;         // a record

template <class T, void (*Free)(T*)>
struct freer {
  void operator()(T* p) const { Free(p); }
};
template <class T, void (*Free)(T*)>
using owned = std::unique_ptr<T, freer<T, Free>>;
using context_ptr = owned<SSL_CTX, SSL_CTX_free>;
using ssl_ptr = owned<SSL, SSL_free>;

void free_bio(BIO* b) { BIO_free_all(b); }
using bio_ptr = owned<BIO, free_bio>;

/// The text of OpenSSL's last error.
std::string last_error() {
  unsigned long e = ERR_peek_error();
  const char* text = ERR_reason_error_string(e);
  bool plain = ERR_GET_REASON(e) == SSL_R_WRONG_VERSION_NUMBER || ERR_GET_REASON(e) == SSL_R_HTTP_REQUEST;
  ERR_clear_error();
  if (plain) return "the other side does not speak TLS";
  return text ? text : "it failed";
}

/// OpenSSL's own BIO of a socket writes in a way that can end the process with SIGPIPE.
int bio_write(BIO* b, const char* bytes, int n) {
  BIO_clear_retry_flags(b);
#ifdef MSG_NOSIGNAL
  constexpr int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
#else
  constexpr int flags = MSG_DONTWAIT;
#endif
  auto sent = ::send(int(reinterpret_cast<std::intptr_t>(BIO_get_data(b))), bytes, std::size_t(n), flags);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(b);
  return int(sent);
}
int bio_read(BIO* b, char* to, int n) {
  BIO_clear_retry_flags(b);
  auto got = ::recv(int(reinterpret_cast<std::intptr_t>(BIO_get_data(b))), to, std::size_t(n), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(b);
  return int(got);
}
long bio_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH; }
const BIO_METHOD* socket_method() {
  static BIO_METHOD* m = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "nearcall socket");
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  return m;
}

class tls_transport final : public transport, io_handler {
 public:
  tls_transport(descriptor s, ssl_ptr ssl) : socket_(std::move(s)), ssl_(std::move(ssl)) {
    BIO* b = BIO_new(socket_method());
    BIO_set_data(b, reinterpret_cast<void*>(std::intptr_t(socket_.get())));
    BIO_set_init(b, 1);
    SSL_set_bio(ssl_.get(), b, b);
    peer_ = identify(socket_.get(), "tcp");
    peer_.tls = true;
  }
  ~tls_transport() override {
    *self_ = nullptr;
    if (loop_) loop_->poller().remove(socket_.get(), this);
  }

  void attach(detail::loop& l, transport_events& e) override {
    loop_ = &l;
    events_ = &e;
    l.poller().add(socket_.get(), this);
    shake();
  }
  void want_writable(bool wants) override {
    session_wants_ = wants;
    update();
  }
  bool established() const override { return established_; }
  bool agreed() const override {
    const unsigned char* name;
    unsigned n;
    SSL_get0_alpn_selected(ssl_.get(), &name, &n);
    return n == both[0] && std::memcmp(name, both + 1, n) == 0;
  }

  std::size_t read(input& to) override {
    std::size_t all = 0;
    while (established_ && !ended_) {
      int n = SSL_read(ssl_.get(), to.room(step), int(step));
      if (n <= 0) {
        failed(n);
        break;
      }
      to.put(std::size_t(n));
      all += std::size_t(n);
      if (all < 1 << 20) continue;
      // Bytes that OpenSSL has read already make no descriptor readable.
      loop_->post([self = self_] {
        if (*self) (*self)->events_->on_readable();
      });
      break;
    }
    update();
    return all;
  }

  std::size_t write(std::span<const iovec> bytes) override {
    std::size_t all = 0;
    for (auto& b : bytes) {
      for (std::size_t done = 0; done < b.iov_len;) {
        if (!established_ || ended_) return all;
        int n = SSL_write(ssl_.get(), static_cast<const char*>(b.iov_base) + done, int(std::min<std::size_t>(b.iov_len - done, 1 << 20)));
        if (n <= 0) {
          failed(n);
          update();
          return all;
        }
        done += std::size_t(n);
        all += std::size_t(n);
      }
    }
    return all;
  }
  void finish_writing() override {
    if (established_) SSL_shutdown(ssl_.get());
    ERR_clear_error();
    ::shutdown(socket_.get(), SHUT_WR);
  }

 private:
  void on_io(bool readable, bool writable) override {
    if (!established_) {
      shake();
      if (!established_ && !ended_) return;
      readable = writable = true;
    }
    if (writable) events_->on_writable();
    if (readable || ssl_wants_write_) events_->on_readable();
  }

  void shake() {
    int n = SSL_do_handshake(ssl_.get());
    if (n == 1) {
      established_ = true;
      if (owned<X509, X509_free> c{SSL_get1_peer_certificate(ssl_.get())}) {
        unsigned char* der = nullptr;
        int length = i2d_X509(c.get(), &der);
        if (length > 0) peer_.certificate.assign(reinterpret_cast<char*>(der), std::size_t(length));
        OPENSSL_free(der);
      }
    } else {
      failed(n);
    }
    update();
  }

  void failed(int n) {
    int e = SSL_get_error(ssl_.get(), n);
    ssl_wants_write_ = e == SSL_ERROR_WANT_WRITE;
    if (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE) return;
    if (established_ && (e == SSL_ERROR_ZERO_RETURN || (e == SSL_ERROR_SYSCALL && ERR_peek_error() == 0))) return end();
    std::string why;
    if (long verified = SSL_get_verify_result(ssl_.get()); verified != X509_V_OK)
      why = std::string("the other side's certificate is not accepted: ") + X509_verify_cert_error_string(verified);
    else if (e == SSL_ERROR_SYSCALL && ERR_peek_error() == 0) why = "the other side has closed the connection";
    else why = last_error();
    ERR_clear_error();
    end("TLS: " + why);
  }

  void update() {
    if (!loop_) return;
    bool wants = ssl_wants_write_ || (session_wants_ && established_);
    if (wants == watching_) return;
    watching_ = wants;
    loop_->poller().want_writable(socket_.get(), this, wants);
  }

  descriptor socket_;
  ssl_ptr ssl_;
  detail::loop* loop_ = nullptr;
  transport_events* events_ = nullptr;
  bool established_ = false, ssl_wants_write_ = false, session_wants_ = false, watching_ = false;
  std::shared_ptr<tls_transport*> self_ = std::make_shared<tls_transport*>(this);
};

class tls final : public security {
 public:
  tls(const tls_options& o, bool server) : server_(server), name_(o.server_name), context_(SSL_CTX_new(server ? TLS_server_method() : TLS_client_method())) {
    SSL_CTX* c = context_.get();
    SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    if (!o.certificate.empty() || server) use_certificate(o);
    if (!o.authorities.empty()) use_authorities(o.authorities);
    else if (!server && SSL_CTX_set_default_verify_paths(c) != 1) error_ = "the system's authorities cannot be read: " + last_error();
    if (server) {
      if (!o.authorities.empty()) SSL_CTX_set_verify(c, SSL_VERIFY_PEER | (o.client_certificate_optional ? 0 : SSL_VERIFY_FAIL_IF_NO_PEER_CERT), nullptr);
      SSL_CTX_set_session_id_context(c, h2, sizeof h2);
      SSL_CTX_set_alpn_select_cb(c, [](SSL*, const unsigned char** out, unsigned char* n, const unsigned char* offered, unsigned length, void*) {
        unsigned char* chosen;
        if (SSL_select_next_proto(&chosen, n, both, sizeof both, offered, length) != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
        *out = chosen;
        return SSL_TLSEXT_ERR_OK;
      }, nullptr);
    } else {
      SSL_CTX_set_verify(c, SSL_VERIFY_PEER, nullptr);
      SSL_CTX_set_alpn_protos(c, h2, sizeof h2);
    }
    ERR_clear_error();
  }

  std::string error() const override { return error_; }

  std::unique_ptr<transport> secure(descriptor s, const std::string& host) const override {
    ssl_ptr ssl(SSL_new(context_.get()));
    if (server_) {
      SSL_set_accept_state(ssl.get());
    } else {
      const std::string& name = name_.empty() ? host : name_;
      unsigned char bytes[16];
      if (::inet_pton(AF_INET, name.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, name.c_str(), bytes) == 1) {
        X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl.get()), name.c_str());
      } else {
        SSL_set_tlsext_host_name(ssl.get(), name.c_str());
        SSL_set1_host(ssl.get(), name.c_str());
      }
      SSL_set_connect_state(ssl.get());
    }
    return std::make_unique<tls_transport>(std::move(s), std::move(ssl));
  }

 private:
  static bio_ptr memory(const std::string& pem) { return bio_ptr(BIO_new_mem_buf(pem.data(), int(pem.size()))); }

  void use_certificate(const tls_options& o) {
    SSL_CTX* c = context_.get();
    bio_ptr chain = memory(o.certificate), key = memory(o.key);
    owned<X509, X509_free> own(PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr));
    owned<EVP_PKEY, EVP_PKEY_free> k(PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr));
    if (!own) error_ = "the certificate is no certificate in PEM";
    else if (!k) error_ = "the key is no private key in PEM";
    else if (SSL_CTX_use_certificate(c, own.get()) != 1) error_ = "the certificate cannot be used: " + last_error();
    else if (SSL_CTX_use_PrivateKey(c, k.get()) != 1) error_ = "the key does not belong to the certificate: " + last_error();
    while (error_.empty()) {
      X509* more = PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr);
      if (!more) break;
      SSL_CTX_add_extra_chain_cert(c, more);  // which takes it over
    }
  }

  void use_authorities(const std::string& pem) {
    bio_ptr list = memory(pem);
    int n = 0;
    while (owned<X509, X509_free> a{PEM_read_bio_X509(list.get(), nullptr, nullptr, nullptr)}) {
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), a.get());
      if (server_) SSL_CTX_add_client_CA(context_.get(), a.get());
      n++;
    }
    if (n == 0 && error_.empty()) error_ = "the authorities are no certificates in PEM";
  }

  bool server_;
  std::string name_, error_;
  context_ptr context_;
};

}  // namespace
}  // namespace detail

std::string read_pem(const std::string& path) {
  std::unique_ptr<FILE, int (*)(FILE*)> f(std::fopen(path.c_str(), "re"), std::fclose);  // closed by exec, which an ifstream is not
  std::string all;
  char bytes[4096];
  for (std::size_t n; f && (n = std::fread(bytes, 1, sizeof bytes, f.get())) > 0;) all.append(bytes, n);
  return all;
}

credentials tls_for_clients(const tls_options& o) { return std::make_shared<detail::tls>(o, false); }
credentials tls_for_servers(const tls_options& o) { return std::make_shared<detail::tls>(o, true); }

}  // namespace nearcall
