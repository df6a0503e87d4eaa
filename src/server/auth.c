/* auth.c - reading keys from the flag and the file, and looking them up.
 *
 * A reload builds a new list of keys and replaces the old one when all of it is valid, so an error
 * leaves the old keys in force. Tenants keep their index over reloads, because limits are counted
 * by it; names are therefore never removed. Buffers that held keys are erased after use. No message
 * contains a key. */
#include "server/auth.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <strings.h>
#include <sys/stat.h>

enum {
    FILE_MAX = 1 << 20,
    KEY_MAX = 512,
    KEYS_MAX = 10000,
    PRIORITY_OPEN = 100, /* priority_max without keys, and of keys from the flag */
    PRIORITY_KEY = 10    /* of keys from the file that give none */
};

struct key {
    unsigned char sha[SHA256_DIGEST_LENGTH];
    struct tenant tenant;
};

struct keys {
    struct key *p; /* [n] */
    int n, cap;
};

struct auth {
    struct keys keys;
    char *key, *file;
    char **names; /* [n_names] of tenants, by index; never shrinks */
    int n_names, cap_names;
    struct tenant anyone; /* the tenant when there are no keys */
    struct tenant named;  /* the last one that a gateway named */
};

/* The index of a tenant's name. */
static int find_or_add_name(struct auth *a, const char *name, uint32_t *index, struct err *e)
{
    int i = 0;

    while (i < a->n_names && strcmp(a->names[i], name) != 0) i++;
    if (i == a->n_names) {
        if (!mem_ensure(a->names, a->cap_names, i + 1) || !(a->names[i] = mem_strdup(name)))
            return err_nomem(e, "the names of tenants");
        a->n_names++;
    }
    *index = (uint32_t)i;
    return OK;
}

/* Printable ASCII without spaces, so that it can be sent in a header. */
static bool is_key(struct str s)
{
    if (s.n == 0 || s.n > KEY_MAX) return false;
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] <= ' ' || s.p[i] > '~') return false;
    return true;
}

/* Safe in logs and labels. */
static bool is_name(struct str s)
{
    if (s.n == 0 || s.n >= sizeof((struct tenant *)0)->name) return false;
    for (size_t i = 0; i < s.n; i++)
        if (!((s.p[i] >= 'a' && s.p[i] <= 'z') || (s.p[i] >= 'A' && s.p[i] <= 'Z') ||
              (s.p[i] >= '0' && s.p[i] <= '9') || memchr("._-@:", s.p[i], 5)))
            return false;
    return true;
}

static int hash_key(struct str key, unsigned char out[SHA256_DIGEST_LENGTH], struct err *e)
{
    if (SHA256((const unsigned char *)key.p, key.n, out)) return OK;
    return err_nomem(e, "the hash of a key");
}

/* The index of the tenant is set after all keys were read: a refused file adds no names. */
static int add_key(struct keys *keys, struct str key, const struct tenant *t, struct err *e)
{
    struct key k = { .tenant = *t };
    int rc = hash_key(key, k.sha, e);

    if (rc != OK) return rc;
    for (int i = 0; i < keys->n; i++)
        if (CRYPTO_memcmp(keys->p[i].sha, k.sha, sizeof k.sha) == 0)
            return err_set(e, E_INVALID, "the key of '%s' is the same as that of '%s'", t->name,
                           keys->p[i].tenant.name);
    if (keys->n == KEYS_MAX) return err_set(e, E_INVALID, "more than %d keys", KEYS_MAX);
    if (!mem_ensure(keys->p, keys->cap, keys->n + 1)) return err_nomem(e, "the API keys");
    keys->p[keys->n++] = k;
    return OK;
}

/* "60", "60/min" or "2/s" → requests per minute. */
static bool parse_rate(struct str s, int *out)
{
    ptrdiff_t slash = str_find(s, STR("/"));
    struct str number = slash < 0 ? s : str_take(s, (size_t)slash),
               unit = slash < 0 ? STR("min") : str_skip(s, (size_t)slash + 1);
    int64_t v;

    if (!str_to_i64(number, &v) || v < 0 || v > 10000000) return false;
    if (str_is(unit, "s")) v *= 60;
    else if (!str_is(unit, "min")) return false;
    *out = (int)v;
    return true;
}

/* A number from lo to hi. */
static bool parse_count(struct str s, int lo, int hi, int *out)
{
    int64_t v;

    if (!str_to_i64(s, &v) || v < lo || v > hi) return false;
    *out = (int)v;
    return true;
}

static bool parse_name(struct str s, struct tenant *t)
{
    if (!is_name(s) || str_is(s, "default")) return false;
    memcpy(t->name, s.p, s.n);
    t->name[s.n] = 0;
    return true;
}

/* "name=value". *allowed: what the value must be; NULL: the name is unknown. */
static bool parse_setting(struct tenant *t, struct str name, struct str value, const char **allowed)
{
    if (str_is(name, "name")) {
        *allowed = "1 to 63 letters, digits or ._-@: and not 'default'";
        return parse_name(value, t);
    }
    if (str_is(name, "rate")) {
        *allowed = "N/min or N/s, N from 0 (no limit) to 10000000";
        return parse_rate(value, &t->rate_per_min);
    }
    if (str_is(name, "concurrency")) {
        *allowed = "a number from 0 (no limit) to 1000000";
        return parse_count(value, 0, 1000000, &t->concurrency);
    }
    if (str_is(name, "priority")) {
        *allowed = "a number from -100 to 100";
        return parse_count(value, -100, 100, &t->priority_max);
    }
    *allowed = NULL;
    return false;
}

/* One word after the key. */
static int parse_word(struct tenant *t, struct str word, struct err *e)
{
    ptrdiff_t eq = str_find(word, STR("="));
    struct str name = str_take(word, eq < 0 ? 0 : (size_t)eq),
               value = str_skip(word, eq < 0 ? word.n : (size_t)eq + 1);
    const char *allowed;

    if (str_is(word, "admin")) {
        t->admin = true;
        return OK;
    }
    if (parse_setting(t, name, value, &allowed)) return OK;
    if (allowed)
        return err_set(e, E_INVALID, "%.*s is '%.*s': it must be %s", STR_ARG(name),
                       STR_ARG(str_take(value, 80)), allowed);
    /* The word is not shown: it may be part of a key. */
    return err_set(e, E_INVALID,
                   "a word after the key is not one of name=, rate=, concurrency=, priority=, "
                   "admin");
}

/* Takes the first word off *rest; empty: none is left. */
static struct str next_word(struct str *rest)
{
    struct str s = str_trim(*rest);
    size_t n = 0;

    while (n < s.n && s.p[n] != ' ' && s.p[n] != '\t') n++;
    *rest = str_skip(s, n);
    return str_take(s, n);
}

/* number: of the line, for the name of a tenant that has none. */
static int parse_line(struct keys *keys, struct str line, int number, struct err *e)
{
    struct tenant t = { .rate_per_min = -1, .concurrency = -1, .priority_max = PRIORITY_KEY };
    struct str rest = line, key = next_word(&rest), word;
    int rc;

    if (!is_key(key))
        return err_set(e, E_INVALID,
                       "a key must be 1 to %d printable ASCII characters without spaces", KEY_MAX);
    snprintf(t.name, sizeof t.name, "line-%d", number);
    while ((word = next_word(&rest)).n)
        if ((rc = parse_word(&t, word, e)) != OK) return rc;
    return add_key(keys, key, &t, e);
}

/* A warning only: the file may be protected by its folder. */
static void warn_if_readable(const char *path)
{
    struct stat st;

    if (stat(path, &st) == 0 && (st.st_mode & S_IRWXO))
        log_warn("%s has mode %03o: other users can read the keys; run chmod 600 on it", path,
                 (unsigned)st.st_mode & 0777);
}

/* Empty lines and lines that begin with # are skipped. */
static int read_key_file(struct keys *keys, const char *path, struct err *e)
{
    struct buf text = { 0 };
    struct str rest;
    int before = keys->n, rc;

    if ((rc = file_read(&text, path, FILE_MAX, e)) != OK) goto out;
    warn_if_readable(path);
    rest = buf_str(&text);
    for (int number = 1; rest.n; number++) {
        ptrdiff_t end = str_find(rest, STR("\n"));
        struct str line = str_trim(end < 0 ? rest : str_take(rest, (size_t)end));
        rest = end < 0 ? STR("") : str_skip(rest, (size_t)end + 1);
        if (line.n == 0 || line.p[0] == '#') continue;
        if ((rc = parse_line(keys, line, number, e)) != OK) {
            err_wrap(e, "%s:%d", path, number);
            goto out;
        }
    }
    if (keys->n == before) rc = err_set(e, E_INVALID, "%s contains no keys", path);
out:
    if (text.p) OPENSSL_cleanse(text.p, text.cap);
    buf_release(&text);
    return rc;
}

/* Keys of the flag belong to tenants "api-key", "api-key-2", ... */
static int read_key_flag(struct keys *keys, const char *list, struct err *e)
{
    struct str rest = str_c(list);
    int number = 0, rc = OK;

    while (rest.n && rc == OK) {
        struct tenant t = {
            .rate_per_min = -1, .concurrency = -1, .priority_max = PRIORITY_OPEN, .admin = true
        };
        ptrdiff_t comma = str_find(rest, STR(","));
        struct str key = str_trim(comma < 0 ? rest : str_take(rest, (size_t)comma));
        rest = comma < 0 ? STR("") : str_skip(rest, (size_t)comma + 1);
        if (++number == 1) snprintf(t.name, sizeof t.name, "api-key");
        else snprintf(t.name, sizeof t.name, "api-key-%d", number);
        if (!is_key(key))
            rc = err_set(e, E_INVALID,
                         "api-key: a key must be 1 to %d printable ASCII characters without spaces",
                         KEY_MAX);
        else if ((rc = add_key(keys, key, &t, e)) != OK) err_wrap(e, "api-key");
    }
    return rc;
}

/* Replaces all keys, or none. */
int auth_reload(struct auth *a, struct err *e)
{
    struct keys keys = { 0 };
    int rc;

    if (a->key && *a->key && (rc = read_key_flag(&keys, a->key, e)) != OK) goto out;
    if (a->file && *a->file && (rc = read_key_file(&keys, a->file, e)) != OK) goto out;
    for (int i = 0; i < keys.n; i++) {
        struct tenant *t = &keys.p[i].tenant;
        if ((rc = find_or_add_name(a, t->name, &t->index, e)) != OK) goto out;
    }
    mem_free(a->keys.p);
    a->keys = keys;
    return OK;
out:
    mem_free(keys.p);
    return rc;
}

int auth_open(struct auth **out, const char *key, const char *file, struct err *e)
{
    struct auth *a = mem_new(struct auth);
    uint32_t index;
    int rc;

    if (!a) return err_nomem(e, "the API keys");
    a->key = key ? mem_strdup(key) : NULL;
    a->file = file ? mem_strdup(file) : NULL;
    a->anyone = (struct tenant){ .name = "default",
                                 .rate_per_min = -1,
                                 .concurrency = -1,
                                 .priority_max = PRIORITY_OPEN,
                                 .admin = true };
    if ((key && !a->key) || (file && !a->file)) rc = err_nomem(e, "the API keys");
    else if ((rc = find_or_add_name(a, "default", &index, e)) == OK) rc = auth_reload(a, e);
    if (rc == OK) *out = a;
    else auth_close(a);
    return rc;
}

void auth_close(struct auth *a)
{
    if (!a) return;
    for (int i = 0; i < a->n_names; i++) mem_free(a->names[i]);
    if (a->key) OPENSSL_cleanse(a->key, strlen(a->key));
    mem_free(a->names);
    mem_free(a->keys.p);
    mem_free(a->key);
    mem_free(a->file);
    mem_free(a);
}

bool auth_is_open(const struct auth *a) { return a->keys.n == 0; }
int auth_n_keys(const struct auth *a) { return a->keys.n; }
const char *auth_name(const struct auth *a, uint32_t i)
{
    return i < (uint32_t)a->n_names ? a->names[i] : NULL;
}

const struct tenant *auth_find(const struct auth *a, const char *name)
{
    for (int i = 0; i < a->keys.n; i++)
        if (strcmp(a->keys.p[i].tenant.name, name) == 0) return &a->keys.p[i].tenant;
    return a->keys.n == 0 ? &a->anyone : NULL;
}

bool auth_has_admin(const struct auth *a)
{
    for (int i = 0; i < a->keys.n; i++)
        if (a->keys.p[i].tenant.admin) return true;
    return false;
}

int auth_gateway_tenant(struct auth *a, struct str name, const struct tenant **out, struct err *e)
{
    struct tenant *t = &a->named;
    int rc;

    if (!is_name(name))
        return err_set(e, E_INVALID,
                       "the header X-Tern-Tenant of a gateway is not the name of a tenant");
    *t = (struct tenant){ .priority_max = PRIORITY_KEY };
    memcpy(t->name, name.p, name.n);
    if (a->n_names >= KEYS_MAX + 1)
        return err_set(e, E_MEMORY, "gateways have named more than %d tenants", KEYS_MAX);
    if ((rc = find_or_add_name(a, t->name, &t->index, e)) != OK) return rc;
    *out = t;
    return OK;
}

/* The K of "Bearer K"; .p NULL: another scheme. */
static struct str get_bearer(struct str header)
{
    if (header.n < 7 || strncasecmp(header.p, "bearer", 6) != 0 || header.p[6] != ' ')
        return str_of(NULL, 0);
    return str_trim(str_skip(header, 7));
}

/* Authorization is preferred. Clients that insist on sending a key work without keys, too. */
int auth_check(const struct auth *a, struct str authorization, struct str x_api_key,
               const struct tenant **out, struct err *e)
{
    struct str key = str_trim(x_api_key);
    unsigned char sha[SHA256_DIGEST_LENGTH];
    const struct tenant *found = NULL;
    int rc;

    if (a->keys.n == 0) { /* a key that the client sends all the same is ignored */
        *out = &a->anyone;
        return OK;
    }
    if (authorization.n) {
        key = get_bearer(authorization);
        if (!key.p)
            return err_set(e, E_DENIED, "the Authorization header must have the form 'Bearer KEY'");
    }
    if (key.n == 0)
        return err_set(e, E_DENIED,
                       "this server requires an API key: send 'Authorization: Bearer KEY' or "
                       "'x-api-key: KEY'");
    if ((rc = hash_key(key, sha, e)) != OK) return rc;
    for (int i = 0; i < a->keys.n; i++) /* all of them: the time must not depend on the key */
        if (CRYPTO_memcmp(a->keys.p[i].sha, sha, sizeof sha) == 0) found = &a->keys.p[i].tenant;
    if (!found) return err_set(e, E_DENIED, "unknown API key");
    *out = found;
    return OK;
}
