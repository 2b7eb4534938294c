/* base/config.h - every configuration variable, from one list: name, kind, default, documentation.
 *
 * Look-up order per variable: environment, then file, then default; options structs are laid over this by their rooms.
 * The file is read anew for each snapshot, so that tests and long-lived processes see what is there. */
#ifndef WEFTI_CONFIG_H
#define WEFTI_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <weft/config.h>

#include "base/units.h"

/* kinds: TEXT any; SIZE "64k", "1M", "4096"; TIME "5s", "50ms", "10us", "250000ns" (stored as ns; "auto" is
 * UINT64_MAX where the default is auto); NUMBER 0..UINT32_MAX;
 * PATH; CHOICE one of the words in `range`, in any case, and kept as it is written there.
 * The range of a number is "least most", and "pow2" after it where only powers of two are right.
 * An empty value is a value where the default is empty; elsewhere it counts as not given. */
/* field, kind, default, range, doc */
#define WEFTI_CONFIG_LIST(X) \
    X(config_file, PATH, "", "", "file with more of these variables, one NAME = value a line") \
    X(log, CHOICE, "warn", "none error warn info debug", "what is written to stderr or the log callback") \
    X(name, TEXT, "", "", "instance name shown to peers; empty: program-pid") \
    X(progress, CHOICE, "caller", "caller thread loop", "who drives a runtime that was opened without saying") \
    X(spin, TIME, "auto", "0ns 1s", \
      "how long to spin before sleeping; auto: 50us on a runtime's own thread, 2ms in a caller's wait") \
    X(shards, NUMBER, "1", "0 128", \
      "threads that drive a runtime with threads of its own, each with connections of its own; 0: one on each core") \
    X(transports, TEXT, "all", "", "all, shm, tcp, or a list of those and UCX transport names; ucx: all of UCX's") \
    X(module_path, PATH, "", "", "folder that has libweft_ucx.so; empty: beside the library, then where Weft was installed") \
    X(interfaces, TEXT, "all", "", "network devices that may be used, comma separated") \
    X(key_file, PATH, "", "", "file with the pre-shared keys, as \"weft key new\" makes it; must not be readable by others") \
    X(tls, CHOICE, "auto", "auto off required", \
      "encrypt what leaves this host, though its address is tcp://: auto where there is a key or certificates, off only at " \
      "tls://, required always") \
    X(tls_cert, PATH, "", "", "our certificate and those between it and the authority, in PEM: tls:// proves with it who we are") \
    X(tls_key, PATH, "", "", "the private key of tls_cert, in PEM; must not be readable by others") \
    X(tls_ca, PATH, "", "", "the authorities whose certificates tls:// believes, in PEM") \
    X(tls_crl, PATH, "", "", "which certificates were revoked, by each of the authorities, in PEM; empty: nobody looks") \
    X(checksum, CHOICE, "off", "off on", \
      "whether what the tcp transport sends without TLS carries a checksum; on at either end is on for both") \
    X(policy, PATH, "", "", "file with the rules who may do what; read again when it changes") \
    X(trusted, CHOICE, "off", "off on emulated", \
      "peers with our key may use UCX's one-sided operations, which check nothing; needs a key") \
    X(heartbeat, TIME, "5s", "100ms 1h", "a silent peer is lost within this time") \
    X(heartbeat_by, CHOICE, "process", "process program", \
      "who sends heartbeats: the process, whatever the program does; the program, only while it drives the runtime") \
    X(connect_timeout, TIME, "10s", "1ms 1h", "how long a connect may take") \
    X(close_timeout, TIME, "10s", "1ms 1h", "how long a graceful close may take before it is forced") \
    X(recv_window, SIZE, "256k", "16k 1G", "bytes of messages nobody asked for that one peer may leave here") \
    X(am_window, SIZE, "1M", "16k 1G", "bytes of active messages that one peer may leave here, waiting or kept") \
    X(am_messages, NUMBER, "2048", "16 65535", "how many active messages one peer may leave here, waiting or kept") \
    X(am_hold, TIME, "30s", "1ms 24h", \
      "how long the payload of an active message may wait at its sender for someone to pull it") \
    X(cuda, CHOICE, "auto", "auto on off", \
      "CUDA memory: auto when a kind of it is asked for by name, on from the start, off never") \
    X(reg_cache, SIZE, "1G", "0 1T", "bytes of registered memory kept at most, in use or for later use") \
    X(shm_ring, SIZE, "64k", "16k 64M pow2", "bytes of shared-memory ring per direction and peer; a power of two") \
    X(shm_copy, CHOICE, "auto", "auto kernel ring", \
      "how large messages move on one host: the kernel's cross-process copy, or in pieces through the ring") \
    X(copy_threads, NUMBER, "3", "0 16", \
      "threads that help to copy many bytes, at most, on processors that drivers leave over; 0: none") \
    X(share_lanes, CHOICE, "on", "on off", "endpoints between the same two runtimes of one host share rings and a socket") \
    X(max_endpoints, NUMBER, "65536", "1 16777215", "endpoints one runtime may have") \
    X(registry, TEXT, "dir://", "", \
      "where services are found: dir:///PATH, dir:// for the default directory, redis://HOST, " \
      "etcd://HOST[:PORT],..., or memory://NAME") \
    X(registry_dir, PATH, "", "", "the directory of dir://; empty: XDG_RUNTIME_DIR/weft, /run/user/UID/weft or /tmp/weft-UID") \
    X(registry_ca, PATH, "", "", "a file of the certificates that etcd+https:// believes in; empty: those of the system") \
    X(mem_server, TEXT, "", "", "where weft mem finds its server; several, for a mirror, separated by blanks") \
    X(launcher, PATH, "", "", "where elements reach weft run, which sets it for them") \
    X(element_uri, TEXT, "", "", "where a memory element on OpenWhisk listens; empty: a port that the system picks")

/* A snapshot of all variables, parsed. TEXT, PATH and CHOICE are strings owned by the snapshot; the others are numbers. */
typedef struct wefti_config {
#define WEFTI_CONFIG_FIELD_TEXT(field)   const char *field;
#define WEFTI_CONFIG_FIELD_PATH(field)   const char *field;
#define WEFTI_CONFIG_FIELD_CHOICE(field) const char *field;
#define WEFTI_CONFIG_FIELD_SIZE(field)   uint64_t field;
#define WEFTI_CONFIG_FIELD_TIME(field)   uint64_t field;
#define WEFTI_CONFIG_FIELD_NUMBER(field) uint64_t field;
#define WEFTI_CONFIG_FIELD(field, kind, def, range, doc) WEFTI_CONFIG_FIELD_##kind(field)
    WEFTI_CONFIG_LIST(WEFTI_CONFIG_FIELD)
#undef WEFTI_CONFIG_FIELD
    struct wefti_config_store *store;
} wefti_config_t;

/* Read environment and file. WEFT_ERR_INVALID: a value does not parse or is out of range; weft_last_error() names the
 * variable, the value, where it came from and what would be right. Unknown names are warned about, once per process and name. */
weft_status_t wefti_config_read(wefti_config_t *config_out);
void wefti_config_free(wefti_config_t *config); /* a zeroed one is allowed */
/* The same from the bytes of a file, called `source` in errors, without the environment: for fuzzing, and for tests that want
 * the defaults (n 0). Unknown names are ignored. */
weft_status_t wefti_config_parse(const char *source, const void *bytes, size_t n, wefti_config_t *config_out);
/* Copy a string that lives as long as the snapshot, for rooms that lay options over it; NULL: no memory. */
const char *wefti_config_keep(wefti_config_t *config, const char *text);

/* Is the fabric marked as trusted? */
static inline bool wefti_trusted(const wefti_config_t *config) { return config->trusted && strcmp(config->trusted, "off") != 0; }
/* And are one-sided operations wanted even where UCX emulates them? */
static inline bool wefti_trusted_emulated(const wefti_config_t *config)
{
    return config->trusted && !strcmp(config->trusted, "emulated");
}

/* For the log: the level configured now, WEFT_LOG_WARN where it is not valid. Neither logs nor fails. */
weft_log_level_t wefti_config_log_level(void);

#endif
