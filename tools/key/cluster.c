/* tools/key/cluster.c - `weft key cluster DIR NAME...`: an authority and certificates for the processes of a cluster.
 *
 * DIR/ca.crt and DIR/ca.key are the authority's, made if they are not there; DIR/NAME.crt and DIR/NAME.key are each NAME's.
 * Everything is made before anything is written, and what one run has written is taken back if it cannot write the rest.
 * tests/tools/tools_key_cluster.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/policy.h>

#include "key.h"

enum { DAYS = 365 };

typedef struct member {
    char *name; /* begins what was given, cut at '=' */
    const char *hosts[KEY_HOSTS_MAX];
    size_t n_hosts;
    char *cert, *key; /* paths */
    key_pem_t pem;
} member_t;

typedef struct cluster {
    /* options */
    uint64_t days;
    bool json;
    /* the rest */
    char *dir; /* whole */
    char *cert, *key;
    key_pem_t pem;
    bool made_dir, made_ca;
    member_t *members;
    size_t n;
} cluster_t;

/* --- what was asked for ---------------------------------------------------------------------------------------------- */

static bool take_hosts(member_t *m, char *list)
{
    for (char *host = list, *next; host; host = next) {
        next = strchr(host, ',');
        if (next)
            *next++ = '\0';
        size_t n = strlen(host);
        if (n > 2 && *host == '[' && host[n - 1] == ']') { /* as in an address */
            host[n - 1] = '\0';
            host++;
        }
        if (!key_is_host(host)) {
            char plain[80];
            tool_error("\"%s\" is no name and no address of a host; give hosts as %s=HOST,HOST",
                       tool_plain(host, plain, sizeof plain), m->name);
            return false;
        }
        if (m->n_hosts == KEY_HOSTS_MAX) {
            tool_error("%s has more than %d hosts", m->name, KEY_HOSTS_MAX);
            return false;
        }
        m->hosts[m->n_hosts++] = host;
    }
    return true;
}

static bool take_member(cluster_t *c, char *word)
{
    member_t *m = &c->members[c->n];
    char *hosts = strchr(word, '=');
    if (hosts)
        *hosts++ = '\0';
    m->name = word;
    if (!key_is_host(word) || strlen(word) > KEY_NAME_MAX || !strcasecmp(word, "ca")) {
        char plain[80];
        tool_error("\"%s\" cannot be the name of a certificate: %s", tool_plain(word, plain, sizeof plain),
                   strcasecmp(word, "ca") ? "it has letters, digits and . - _ in it, at most 63" : "that is the authority");
        return false;
    }
    if (!strcasecmp(word, WEFT_ANONYMOUS)) {
        tool_error("\"%s\" cannot be the name of a certificate: in a policy it stands for everybody without a name", word);
        return false;
    }
    for (size_t i = 0; i < c->n; i++)
        if (!strcasecmp(c->members[i].name, word)) {
            tool_error("%s is given twice", word);
            return false;
        }
    c->n++;
    return !hosts || take_hosts(m, hosts);
}

/* TOOL_GO, or the exit status. */
static int understand(cluster_t *c, int argc, char **argv)
{
    tool_words_t words;
    c->days = DAYS;
    int rc = tool_options(&key_cluster_command, argc, argv, c, &words);
    if (rc != TOOL_GO)
        return rc;
    if (words.n < 2 || !*words.at[0]) {
        tool_error("say where, and for whom: weft key cluster DIR NAME[=HOST,...]...");
        return TOOL_USAGE;
    }
    c->members = calloc(words.n, sizeof *c->members);
    for (size_t i = 1; c->members && i < words.n; i++)
        if (!take_member(c, words.at[i]))
            return TOOL_USAGE;
    if (c->members)
        return TOOL_GO;
    tool_error("out of memory");
    return TOOL_FAILED;
}

/* --- files ------------------------------------------------------------------------------------------------------------ */

static char *path_of(const char *dir, const char *name, const char *end)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s.%s", dir, name, end) >= 0)
        return path;
    tool_error("out of memory");
    return NULL;
}

static bool is_there(const char *path)
{
    struct stat st;
    return !lstat(path, &st);
}

static bool open_dir(cluster_t *c, const char *dir)
{
    c->made_dir = !mkdir(dir, 0700);
    c->dir = c->made_dir || errno == EEXIST ? realpath(dir, NULL) : NULL;
    if (!c->dir) {
        tool_error("the directory %s cannot be made: %s", dir, strerror(errno));
        return false;
    }
    c->cert = path_of(c->dir, "ca", "crt");
    c->key = path_of(c->dir, "ca", "key");
    bool good = c->cert && c->key;
    for (size_t i = 0; i < c->n && good; i++) {
        member_t *m = &c->members[i];
        m->cert = path_of(c->dir, m->name, "crt");
        m->key = path_of(c->dir, m->name, "key");
        good = m->cert && m->key;
    }
    return good;
}

static bool nothing_in_the_way(const cluster_t *c)
{
    for (size_t i = 0; i < c->n; i++) {
        const char *paths[] = {c->members[i].cert, c->members[i].key};
        for (int k = 0; k < 2; k++)
            if (is_there(paths[k])) {
                tool_error("%s is there already, and is not replaced: it may be in use; to renew it, move it away", paths[k]);
                return false;
            }
    }
    return true;
}

/* The text of a small file, yours to free; NULL after a sentence. */
static char *read_text(const char *path)
{
    char *text = malloc(KEY_PEM_MAX);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    ssize_t got = -1;
    while (fd >= 0 && text && n < KEY_PEM_MAX - 1 &&
           ((got = read(fd, text + n, KEY_PEM_MAX - 1 - n)) > 0 || (got < 0 && errno == EINTR)))
        n += got > 0 ? (size_t)got : 0;
    int err = errno;
    if (fd >= 0)
        close(fd);
    if (text && !got) {
        text[n] = '\0';
        return text;
    }
    tool_error("%s cannot be read: %s", path, got > 0 ? "it is too long for a certificate or a key" : strerror(err));
    if (text)
        explicit_bzero(text, n);
    free(text);
    return NULL;
}

static key_ca_t *read_ca(cluster_t *c)
{
    char *cert = read_text(c->cert), *key = cert ? read_text(c->key) : NULL;
    key_ca_t *ca = key ? key_ca_read(cert, c->cert, key, c->key, &c->pem) : NULL;
    if (key)
        explicit_bzero(key, strlen(key));
    free(key);
    free(cert);
    return ca;
}

static key_ca_t *find_ca(cluster_t *c)
{
    bool cert = is_there(c->cert), key = is_there(c->key);
    if (cert && key)
        return read_ca(c);
    if (cert != key) {
        tool_error("%s is there, and %s is not: an authority needs both; use another directory for a new one",
                   cert ? c->cert : c->key, cert ? c->key : c->cert);
        return NULL;
    }
    c->made_ca = true;
    return key_ca_new(&c->pem);
}

static bool make(cluster_t *c)
{
    key_ca_t *ca = find_ca(c);
    bool good = ca != NULL;
    for (size_t i = 0; i < c->n && good; i++) {
        member_t *m = &c->members[i];
        good = key_cert_new(ca, m->name, m->hosts, m->n_hosts, (unsigned)c->days, &m->pem);
    }
    key_ca_free(ca);
    return good;
}

/* Keys before certificates: what is there whole is good. */
static bool write_all(const cluster_t *c)
{
    size_t n = 0, cap = 2 * (c->n + 1);
    const char **done = calloc(cap, sizeof *done);
    bool good = done;
    if (!done)
        tool_error("out of memory");
    for (size_t i = c->made_ca ? 0 : 1; i <= c->n && good; i++) {
        const member_t *m = i ? &c->members[i - 1] : NULL;
        const key_pem_t *pem = m ? &m->pem : &c->pem;
        const char *key = m ? m->key : c->key, *cert = m ? m->cert : c->cert;
        good = key_file_new(key, pem->key, strlen(pem->key), 0600);
        if (good)
            done[n++] = key;
        good = good && key_file_new(cert, pem->cert, strlen(pem->cert), 0644);
        if (good)
            done[n++] = cert;
    }
    while (!good && n)
        unlink(done[--n]);
    free(done);
    return good;
}

/* --- what is said of it ----------------------------------------------------------------------------------------------- */

static void say(const cluster_t *c)
{
    printf("%s  the authority, %s until %s\n%s  its key: only who makes certificates needs it\n", c->cert,
           c->made_ca ? "new," : "as it was,", c->pem.until, c->key);
    for (size_t i = 0; i < c->n; i++) {
        const member_t *m = &c->members[i];
        printf("%s  for %s", m->cert, m->name);
        for (size_t k = 0; k < m->n_hosts; k++)
            printf(", %s", m->hosts[k]);
        printf(", until %s\n%s  its key\n", m->pem.until, m->key);
    }
    printf("Each process needs its own certificate and key, and the authority's certificate:\n");
    for (size_t i = 0; i < c->n; i++)
        printf("  export WEFT_TLS_CERT=%s WEFT_TLS_KEY=%s WEFT_TLS_CA=%s\n", c->members[i].cert, c->members[i].key, c->cert);
}

static void say_json(const cluster_t *c)
{
    tool_json_t j = tool_json_begin(stdout);
    tool_json_open(&j, "authority", '{');
    tool_json_text(&j, "cert", c->cert);
    tool_json_text(&j, "key", c->key);
    tool_json_text(&j, "until", c->pem.until);
    tool_json_raw(&j, "new", c->made_ca ? "true" : "false");
    tool_json_close(&j, '}');
    tool_json_open(&j, "certificates", '[');
    for (size_t i = 0; i < c->n; i++) {
        const member_t *m = &c->members[i];
        tool_json_open(&j, NULL, '{');
        tool_json_text(&j, "name", m->name);
        tool_json_open(&j, "hosts", '[');
        for (size_t k = 0; k < m->n_hosts; k++)
            tool_json_text(&j, NULL, m->hosts[k]);
        tool_json_close(&j, ']');
        tool_json_text(&j, "cert", m->cert);
        tool_json_text(&j, "key", m->key);
        tool_json_text(&j, "until", m->pem.until);
        tool_json_open(&j, "environment", '{');
        tool_json_text(&j, "WEFT_TLS_CERT", m->cert);
        tool_json_text(&j, "WEFT_TLS_KEY", m->key);
        tool_json_text(&j, "WEFT_TLS_CA", c->cert);
        tool_json_close(&j, '}');
        tool_json_close(&j, '}');
    }
    tool_json_close(&j, ']');
    tool_json_end(&j);
}

static int key_cluster(int argc, char **argv)
{
    cluster_t c = {0};
    int rc = understand(&c, argc, argv);
    if (rc == TOOL_GO) {
        const char *dir = argv[1];
        bool good = key_x509_ready() && open_dir(&c, dir) && nothing_in_the_way(&c) && make(&c) && write_all(&c);
        if (good)
            (c.json ? say_json : say)(&c);
        else if (c.made_dir)
            rmdir(dir);
        rc = good ? TOOL_OK : TOOL_FAILED;
    }
    for (size_t i = 0; i < c.n; i++) {
        key_pem_free(&c.members[i].pem);
        free(c.members[i].cert);
        free(c.members[i].key);
    }
    key_pem_free(&c.pem);
    free(c.members);
    free(c.cert);
    free(c.key);
    free(c.dir);
    return rc;
}

static const tool_opt_t options[] = {
    {"days", "N", "how long the certificates are valid (default 365); the authority is for ten years",
     TO_COUNT(cluster_t, days, 1, 3650)},
    {"json", NULL, "one line of JSON that says what was made, and the variables to set", TO_FLAG(cluster_t, json)},
    {0},
};

const tool_command_t key_cluster_command = {
    .name = "cluster",
    .full_name = "weft key cluster",
    .summary = "make an authority and certificates for the processes of a cluster",
    .usage = "DIR NAME[=HOST,...]... [options]",
    .about =
        "Makes certificates for tls:// in the directory DIR: an authority (ca.crt and ca.key), unless it is there already, and "
        "for each NAME a certificate and its key (NAME.crt and NAME.key). A process that is called needs the hosts by which "
        "others call it, names or addresses, behind its NAME. Files that are there already are not touched.",
    .options = options,
    .words = true,
    .run = key_cluster,
};
