/* fabric/tls/openssl.h - OpenSSL's functions, loaded at run time; for the files of this folder only. */
#ifndef WEFTI_OPENSSL_H
#define WEFTI_OPENSSL_H

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <weft/status.h>

#define WEFTI_SSL_CALLS(X) \
    X(ASN1_STRING_get0_data) \
    X(ASN1_STRING_length) \
    X(BIO_clear_flags) \
    X(BIO_get_data) \
    X(BIO_meth_new) \
    X(BIO_meth_set_create) \
    X(BIO_meth_set_ctrl) \
    X(BIO_meth_set_read) \
    X(BIO_meth_set_write) \
    X(BIO_new) \
    X(BIO_set_data) \
    X(BIO_set_flags) \
    X(BIO_set_init) \
    X(ERR_clear_error) \
    X(ERR_peek_error) \
    X(ERR_peek_last_error) \
    X(ERR_reason_error_string) \
    X(GENERAL_NAMES_free) \
    X(OPENSSL_init_ssl) \
    X(OPENSSL_sk_free) \
    X(OPENSSL_sk_num) \
    X(OPENSSL_sk_pop) \
    X(OPENSSL_sk_value) \
    X(OpenSSL_version) \
    X(SSL_CIPHER_find) \
    X(SSL_CIPHER_get_name) \
    X(SSL_CTX_check_private_key) \
    X(SSL_CTX_ctrl) \
    X(SSL_CTX_free) \
    X(SSL_CTX_get0_certificate) \
    X(SSL_CTX_get_cert_store) \
    X(SSL_CTX_load_verify_locations) \
    X(SSL_CTX_new) \
    X(SSL_CTX_sess_set_get_cb) \
    X(SSL_CTX_sess_set_new_cb) \
    X(SSL_CTX_set_ciphersuites) \
    X(SSL_CTX_set_default_passwd_cb) \
    X(SSL_CTX_set_default_passwd_cb_userdata) \
    X(SSL_CTX_set_default_read_buffer_len) \
    X(SSL_CTX_set_num_tickets) \
    X(SSL_CTX_set_options) \
    X(SSL_CTX_set_security_level) \
    X(SSL_CTX_set_psk_find_session_callback) \
    X(SSL_CTX_set_psk_use_session_callback) \
    X(SSL_CTX_set_session_id_context) \
    X(SSL_CTX_set_timeout) \
    X(SSL_CTX_set_verify) \
    X(SSL_CTX_up_ref) \
    X(SSL_CTX_use_PrivateKey_file) \
    X(SSL_CTX_use_certificate_chain_file) \
    X(SSL_SESSION_dup) \
    X(SSL_SESSION_free) \
    X(SSL_SESSION_get_id) \
    X(SSL_SESSION_new) \
    X(SSL_SESSION_set1_id_context) \
    X(SSL_SESSION_set1_master_key) \
    X(SSL_SESSION_set_cipher) \
    X(SSL_SESSION_set_protocol_version) \
    X(SSL_do_handshake) \
    X(SSL_export_keying_material) \
    X(SSL_free) \
    X(SSL_free_buffers) \
    X(SSL_get0_param) \
    X(SSL_get1_peer_certificate) \
    X(SSL_get_SSL_CTX) \
    X(SSL_get_current_cipher) \
    X(SSL_get_error) \
    X(SSL_get_ex_data) \
    X(SSL_get_peer_cert_chain) \
    X(SSL_get_verify_result) \
    X(SSL_has_pending) \
    X(SSL_key_update) \
    X(SSL_new) \
    X(SSL_peek_ex) \
    X(SSL_read_ex) \
    X(SSL_session_reused) \
    X(SSL_set1_host) \
    X(SSL_set_accept_state) \
    X(SSL_set_bio) \
    X(SSL_set_connect_state) \
    X(SSL_set_ex_data) \
    X(SSL_set_hostflags) \
    X(SSL_set_num_tickets) \
    X(SSL_set_session) \
    X(SSL_shutdown) \
    X(SSL_write_ex) \
    X(TLS_method) \
    X(X509_LOOKUP_file) \
    X(X509_OBJECT_get0_X509) \
    X(X509_STORE_CTX_free) \
    X(X509_STORE_CTX_get0_param) \
    X(X509_STORE_CTX_get_error) \
    X(X509_STORE_CTX_init) \
    X(X509_STORE_CTX_new) \
    X(X509_STORE_CTX_set_default) \
    X(X509_STORE_CTX_set_flags) \
    X(X509_STORE_add_lookup) \
    X(X509_STORE_get0_objects) \
    X(X509_STORE_set_flags) \
    X(X509_VERIFY_PARAM_set1) \
    X(X509_VERIFY_PARAM_set1_ip_asc) \
    X(X509_VERIFY_PARAM_set_auth_level) \
    X(X509_chain_up_ref) \
    X(X509_check_purpose) \
    X(X509_dup) \
    X(X509_free) \
    X(X509_get0_pubkey) \
    X(X509_get_ext_d2i) \
    X(X509_load_crl_file) \
    X(X509_up_ref) \
    X(X509_verify_cert) \
    X(X509_verify_cert_error_string)


typedef struct wefti_ssl {
#define MEMBER(name) __typeof__(&name) name;
    WEFTI_SSL_CALLS(MEMBER)
#undef MEMBER
} wefti_ssl_t;

/* Load it, once in a process; it stays. WEFT_ERR_UNSUPPORTED with a sentence. Any thread. */
weft_status_t wefti_ssl_load(void);
extern wefti_ssl_t wefti_ssl; /* after wefti_ssl_load() */

/* Why the last call of this thread failed, in OpenSSL's words. */
const char *wefti_ssl_why(void);

#endif
