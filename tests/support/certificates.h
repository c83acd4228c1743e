// Certificates for tests: authorities, and the certificates that they sign, as PEM files.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include "lib/net/tls_context.h"

namespace entrain {

class Authority {
 public:
  Authority() : directory_("/tmp/entrain-certificates-XXXXXX") {
    if (mkdtemp(directory_.data()) == nullptr) {
      std::abort();
    }
    // Different authorities have different names.
    certificate_ = Sign("the authority of " + directory_, key_, kDay);
    Write("ca.pem", [&](FILE* file) { PEM_write_X509(file, certificate_); });
  }
  ~Authority() {
    X509_free(certificate_);
    EVP_PKEY_free(key_);
    std::filesystem::remove_all(directory_);
  }
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  // Makes a certificate that expires after `seconds`. If `seconds` is negative, it has expired.
  // `usage` is its extended key usage, for example "serverAuth,clientAuth"; null: it has none.
  TlsFiles Issue(const std::string& name, long seconds = kDay,  // NOLINT(runtime/int)
                 const char* usage = nullptr) {
    EVP_PKEY* const key = EVP_EC_gen("P-256");
    X509* const certificate = Sign(name, key, seconds, usage);
    TlsFiles files;
    files.certificate = Write(name + ".pem", [&](FILE* to) { PEM_write_X509(to, certificate); });
    files.key = Write(name + ".key", [&](FILE* to) {
      PEM_write_PrivateKey(to, key, nullptr, nullptr, 0, nullptr, nullptr);
    });
    files.authorities = directory_ + "/ca.pem";
    X509_free(certificate);
    EVP_PKEY_free(key);
    return files;
  }

 private:
  static constexpr long kDay = 86400;  // NOLINT(runtime/int)

  X509* Sign(const std::string& name, EVP_PKEY* key, long seconds,  // NOLINT(runtime/int)
             const char* usage = nullptr) {
    X509* const certificate = X509_new();
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial_);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -2 * kDay);
    X509_gmtime_adj(X509_getm_notAfter(certificate), seconds);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(
        certificate, X509_get_subject_name(certificate_ != nullptr ? certificate_ : certificate));
    const auto extend = [certificate](int kind, const char* value) {
      X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value);
      X509_add_ext(certificate, extension, -1);
      X509_EXTENSION_free(extension);
    };
    if (certificate_ == nullptr) {
      extend(NID_basic_constraints, "critical,CA:TRUE");
    }
    if (usage != nullptr) {
      extend(NID_ext_key_usage, usage);
    }
    X509_sign(certificate, key_, EVP_sha256());
    return certificate;
  }

  template <typename Put>
  std::string Write(const std::string& name, Put put) {
    std::string path = directory_ + "/" + name;
    FILE* const file = std::fopen(path.c_str(), "w");
    put(file);
    std::fclose(file);
    chmod(path.c_str(), S_IRUSR | S_IWUSR);
    return path;
  }

  std::string directory_;
  EVP_PKEY* key_ = EVP_EC_gen("P-256");
  X509* certificate_ = nullptr;
  int serial_ = 0;
};

}  // namespace entrain
