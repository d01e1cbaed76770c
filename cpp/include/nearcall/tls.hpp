// TLS for TCP targets. Programs that use it link nearcall::tls, which needs OpenSSL 3.
#pragma once

#include <string>

#include <nearcall/channel.hpp>

namespace nearcall {

/// Certificates and keys, in PEM.
struct tls_options {
  /// The certificates of the trusted authorities. Clients trust the system's if this is empty. Servers ask clients for a certificate if
  /// it is not empty.
  std::string authorities = {};
  /// This side's certificate, with the chain behind it, and its key. Servers need both.
  std::string certificate = {};
  std::string key = {};
  /// Clients: the name or address that the server's certificate has to have, by default the target's host.
  std::string server_name = {};
  /// Servers: whether clients without a certificate are accepted, if they are asked for one.
  bool client_certificate_optional = false;
};

/// The content of a file, for tls_options. Empty if it cannot be read.
std::string read_pem(const std::string& path);

/// Credentials for channels and for server::listen. If the options are wrong, calls fail with the reason and listen returns it.
credentials tls_for_clients(const tls_options& o = {});
credentials tls_for_servers(const tls_options& o);

}  // namespace nearcall
