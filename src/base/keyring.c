/* keyring.c - sets of keys, the ring, and the command that prints a key. See keyring.h. */
#include "base/keyring.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MAX_TEXT = 4096 }; /* of a file, or of the output of a command */

struct keyset {
    struct keyset *next; /* in the ring */
    bool joined;
    int n;
    unsigned char keys[KEYSET_MAX][CRYPTO_KEY], ids[KEYSET_MAX][KEY_ID];
};

static struct {
    pthread_mutex_t lock;
    struct keyset *first;
} ring = { PTHREAD_MUTEX_INITIALIZER, NULL };

int key_id(unsigned char id[KEY_ID], const unsigned char key[CRYPTO_KEY], struct err *e)
{
    unsigned char sum[CRYPTO_SUM];
    int rc = crypto_hmac(sum, key, STR("tern key id"), e);

    if (rc == OK) memcpy(id, sum, KEY_ID);
    return rc;
}

/* ---- sets ---- */

int keyset_n(const struct keyset *k) { return k ? k->n : 0; }
const unsigned char *keyset_key(const struct keyset *k, int i) { return k->keys[i]; }
const unsigned char *keyset_id(const struct keyset *k, int i) { return k->ids[i]; }

static int add_key(struct keyset *k, const unsigned char *key, struct err *e)
{
    int rc = key_id(k->ids[k->n], key, e);

    if (rc == OK) memcpy(k->keys[k->n++], key, CRYPTO_KEY);
    return rc;
}

int keyset_copy(struct keyset **out, const void *keys, int n, struct err *e)
{
    struct keyset *k = n >= 0 && n <= KEYSET_MAX ? crypto_secret(sizeof *k) : NULL;
    int rc = k ? OK : err_nomem(e, "keys");

    for (int i = 0; i < n && rc == OK; i++)
        rc = add_key(k, (const unsigned char *)keys + (size_t)i * CRYPTO_KEY, e);
    if (rc == OK) *out = k;
    else keyset_close(k);
    return rc;
}

/* Text is no random key: 31 letters and a line feed would otherwise be one. */
static bool is_raw(struct str text)
{
    bool printable = true;

    for (size_t i = 0; i < text.n; i++)
        printable &= (text.p[i] >= ' ' && text.p[i] < 0x7f) || text.p[i] == '\n' ||
                     text.p[i] == '\r' || text.p[i] == '\t';
    return text.n == CRYPTO_KEY && !printable;
}

static int fail_text(const char *where, int line, struct err *e)
{
    return err_set(e, E_FORMAT,
                   "%s: line %d: expected a key of 64 hex digits per line, at most %d lines, or 32 "
                   "random bytes",
                   where, line, KEYSET_MAX);
}

static int read_lines(struct keyset *k, struct str text, const char *where, struct err *e)
{
    unsigned char key[CRYPTO_KEY];
    int line = 0, rc = OK;

    while (text.n > 0 && rc == OK) {
        const char *end = memchr(text.p, '\n', text.n);
        struct str one = str_of(text.p, end ? (size_t)(end - text.p) : text.n);

        text = str_skip(text, one.n + 1);
        one = str_trim(one);
        line++;
        if (one.n == 0 || one.p[0] == '#') continue;
        if (k->n == KEYSET_MAX || !crypto_unhex(key, sizeof key, one))
            rc = fail_text(where, line, e);
        else rc = add_key(k, key, e);
    }
    explicit_bzero(key, sizeof key);
    return rc == OK && k->n == 0 ? fail_text(where, 1, e) : rc;
}

int keyset_parse(struct keyset **out, struct str text, const char *where, struct err *e)
{
    struct keyset *k;
    int rc;

    if (is_raw(text)) return keyset_copy(out, text.p, 1, e);
    if (!(k = crypto_secret(sizeof *k))) return err_nomem(e, "keys");
    rc = read_lines(k, text, where, e);
    if (rc == OK) *out = k;
    else keyset_close(k);
    return rc;
}

void keyset_close(struct keyset *k)
{
    struct keyset **p = &ring.first;

    if (!k) return;
    pthread_mutex_lock(&ring.lock);
    while (k->joined && *p != k) p = &(*p)->next;
    if (k->joined) *p = k->next;
    pthread_mutex_unlock(&ring.lock);
    crypto_secret_free(k, sizeof *k);
}

/* ---- the ring ---- */

void keyset_join(struct keyset *k)
{
    if (!k) return;
    pthread_mutex_lock(&ring.lock);
    if (!k->joined) {
        k->joined = true;
        k->next = ring.first;
        ring.first = k;
    }
    pthread_mutex_unlock(&ring.lock);
}

bool keyring_find(const unsigned char id[KEY_ID], unsigned char key[CRYPTO_KEY])
{
    bool found = false;

    pthread_mutex_lock(&ring.lock);
    for (const struct keyset *k = ring.first; k && !found; k = k->next)
        for (int i = 0; i < k->n && !found; i++) {
            found = memcmp(k->ids[i], id, KEY_ID) == 0;
            if (found) memcpy(key, k->keys[i], CRYPTO_KEY);
        }
    pthread_mutex_unlock(&ring.lock);
    return found;
}

void keyring_describe(struct buf *out)
{
    char hex[KEY_ID_HEX];
    int n = 0;

    pthread_mutex_lock(&ring.lock);
    for (const struct keyset *k = ring.first; k; k = k->next)
        for (int i = 0; i < k->n && n < KEYSET_MAX; i++) {
            crypto_hex(hex, k->ids[i], KEY_ID);
            buf_printf(out, "%s%s", n++ ? ", " : "", hex);
        }
    pthread_mutex_unlock(&ring.lock);
}

/* ---- sources ---- */

static int read_key_file(struct keyset **out, const char *path, char *text, struct err *e)
{
    int fd, rc = file_check_input(path, e);
    ssize_t n;

    if (rc != OK) return rc;
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return err_set(e, E_IO, "%s: %s", path, strerror(errno));
    n = read(fd, text, MAX_TEXT);
    close(fd);
    if (n < 0) return err_set(e, E_IO, "%s: %s", path, strerror(errno));
    return keyset_parse(out, str_of(text, (size_t)n), path, e);
}

/* A process group of its own, so that all of it can be killed; signals as a program expects them. */
static int spawn_command(pid_t *pid, const char *command, int to, struct err *e)
{
    char *argv[] = { "sh", "-c", (char *)command, NULL };
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    sigset_t none, all;
    int rc;

    sigemptyset(&none);
    sigfillset(&all);
    sigdelset(&all, SIGKILL);
    sigdelset(&all, SIGSTOP);
    if ((rc = posix_spawn_file_actions_init(&fa)) != 0) goto fail;
    if ((rc = posix_spawnattr_init(&at)) != 0) {
        posix_spawn_file_actions_destroy(&fa);
        goto fail;
    }
    rc = posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    if (rc == 0) rc = posix_spawn_file_actions_adddup2(&fa, to, 1);
    if (rc == 0) rc = posix_spawnattr_setsigmask(&at, &none);
    if (rc == 0) rc = posix_spawnattr_setsigdefault(&at, &all);
    if (rc == 0)
        rc = posix_spawnattr_setflags(&at, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                               POSIX_SPAWN_SETSIGDEF);
    if (rc == 0) rc = posix_spawn(pid, "/bin/sh", &fa, &at, argv, environ);
    posix_spawnattr_destroy(&at);
    posix_spawn_file_actions_destroy(&fa);
    if (rc == 0) return OK;
fail:
    return err_set(e, E_IO, "the key command cannot be started: %s", strerror(rc));
}

/* Bytes of the pipe until its end; -1: too many, or the time is over. */
static ssize_t read_output(int fd, char *text, uint64_t until)
{
    size_t n = 0;

    for (;;) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        uint64_t now = clock_ns();
        ssize_t got;

        if (now >= until) return -1;
        if (poll(&p, 1, (int)((until - now) / 1000000) + 1) <= 0) continue;
        got = read(fd, text + n, MAX_TEXT - n);
        if (got < 0 && errno == EINTR) continue;
        if (got == 0) return (ssize_t)n;
        if (got < 0 || (n += (size_t)got) == MAX_TEXT) return -1;
    }
}

/* Waits for its end until the same time. false: it still runs. */
static bool wait_until(pid_t pid, int *status, uint64_t until)
{
    while (waitpid(pid, status, WNOHANG) == 0) {
        if (clock_ns() >= until) return false;
        usleep(2000);
    }
    return true;
}

static int run_key_command(struct keyset **out, const char *command, int timeout_ms, char *text,
                           struct err *e)
{
    uint64_t until = clock_ns() + (uint64_t)timeout_ms * 1000000;
    int fds[2], rc, status = 0;
    ssize_t n;
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) != 0) return err_set(e, E_IO, "pipe: %s", strerror(errno));
    rc = spawn_command(&pid, command, fds[1], e);
    close(fds[1]);
    if (rc != OK) {
        close(fds[0]);
        return rc;
    }
    n = read_output(fds[0], text, until);
    close(fds[0]);
    if (n < 0 || !wait_until(pid, &status, until)) {
        kill(-pid, SIGKILL);
        waitpid(pid, &status, 0);
        return err_set(e, E_IO, "the key command did not print a key within %d ms", timeout_ms);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return err_set(e, E_IO, "the key command %s %d",
                       WIFEXITED(status) ? "exited with code" : "was ended by signal",
                       WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return keyset_parse(out, str_of(text, (size_t)n), "the output of the key command", e);
}

int keyset_open(struct keyset **out, const char *file, const char *command, int timeout_ms,
                struct err *e)
{
    bool has_file = file && *file, has_command = command && *command;
    char *text;
    int rc;

    *out = NULL;
    if (has_file && has_command)
        return err_set(e, E_INVALID, "a key file and a key command: only one of them is allowed");
    if (!has_file && !has_command) return OK;
    if (!(text = crypto_secret(MAX_TEXT))) return err_nomem(e, "keys");
    rc = has_file
             ? read_key_file(out, file, text, e)
             : run_key_command(out, command, timeout_ms ? timeout_ms : KEY_COMMAND_MS, text, e);
    crypto_secret_free(text, MAX_TEXT);
    return rc;
}
