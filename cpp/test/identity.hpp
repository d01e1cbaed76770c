// Certificates that a test makes itself.
#pragma once

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <string>

namespace nearcall::test {

inline std::string pem(auto write) {
  BIO* b = BIO_new(BIO_s_mem());
  write(b);
  char* bytes;
  long n = BIO_get_mem_data(b, &bytes);
  std::string s(bytes, std::size_t(n));
  BIO_free(b);
  return s;
}

/// A certificate with its key, signed by another or by itself.
struct identity {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();

  identity(const std::string& name, const identity* authority, const char* subject = nullptr, long seconds = 3600) {
    static long serial = 1;
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial++);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -7200);
    X509_gmtime_adj(X509_getm_notAfter(certificate), seconds);
    X509_set_pubkey(certificate, key);
    X509_NAME* n = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(n, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509* issuer = authority ? authority->certificate : certificate;
    X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, issuer, certificate, nullptr, nullptr, 0);
    auto extend = [&](int nid, const char* value) {
      X509_EXTENSION* e = X509V3_EXT_conf_nid(nullptr, &ctx, nid, value);
      X509_add_ext(certificate, e, -1);
      X509_EXTENSION_free(e);
    };
    if (!authority) extend(NID_basic_constraints, "critical,CA:TRUE");
    if (subject) extend(NID_subject_alt_name, subject);
    X509_sign(certificate, authority ? authority->key : key, EVP_sha256());
  }
  identity(const identity&) = delete;
  ~identity() {
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  std::string certificate_pem() const {
    return pem([&](BIO* b) { PEM_write_bio_X509(b, certificate); });
  }
  std::string key_pem() const {
    return pem([&](BIO* b) { PEM_write_bio_PrivateKey(b, key, nullptr, nullptr, 0, nullptr, nullptr); });
  }
};

}  // namespace nearcall::test
