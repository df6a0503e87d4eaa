#include "pull/hubreply.h"

#include "format/jsonload.h"

#include <ctype.h>
#include <stdio.h>
#include <strings.h>

/* ---- checksums ---- */

static bool copy_hex(char *to, struct str from, size_t n)
{
    if (from.n != n) return false;
    for (size_t i = 0; i < n; i++) {
        char c = (char)tolower((unsigned char)from.p[i]);
        if (!isdigit((unsigned char)c) && (c < 'a' || c > 'f')) return false;
        to[i] = c;
    }
    to[n] = 0;
    return true;
}

static bool copy_sum(char to[65], struct str from)
{
    return copy_hex(to, from, 64) || copy_hex(to, from, 40) || (to[0] = 0, false);
}

bool hub_is_sum(const char *s)
{
    size_t n = strspn(s, "0123456789abcdef");
    return s[n] == 0 && (n == 40 || n == 64);
}

/* ---- the list of files ---- */

static struct str text_of(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_string(v) ? str_of(json_string_value(v), json_string_length(v)) : STR("");
}

static uint64_t size_of(const json_t *object)
{
    const json_t *v = json_object_get(object, "size");
    return json_is_integer(v) && json_integer_value(v) > 0 ? (uint64_t)json_integer_value(v) : 0;
}

/* A small file has the hash of its git blob, a large one the SHA-256 of its contents. */
static int add_sibling(struct hub_files *out, const json_t *s, struct err *e)
{
    const json_t *lfs = json_object_get(s, "lfs");
    struct str name = text_of(s, "rfilename");
    struct hub_file *f;

    if (!hub_name_is_safe(name)) return OK;
    if (out->n == HUB_FILES_MAX)
        return err_set(e, E_FORMAT, "the hub lists more than %d files", HUB_FILES_MAX);
    if (!(f = hub_files_add(out, name))) return err_nomem(e, "the list of files");
    f->bytes = size_of(json_is_object(lfs) && size_of(lfs) ? lfs : s);
    if (!json_is_object(lfs)) copy_sum(f->sum, text_of(s, "blobId"));
    else if (!copy_sum(f->sum, text_of(lfs, "sha256"))) copy_sum(f->sum, text_of(lfs, "oid"));
    return OK;
}

/* The first of two files of one name stays. The list is sorted. */
static bool has_duplicates(const struct hub_files *l)
{
    for (int i = 1; i < l->n; i++)
        if (strcmp(l->at[i - 1].name, l->at[i].name) == 0) return true;
    return false;
}

int hubreply_files(struct hub_files *out, char commit[41], struct str json, struct err *e)
{
    json_t *root = NULL, *list, *s;
    size_t i;
    int rc = jsonload(&root, json, JSON_ALLOW_NUL, "the hub's list of files", e);

    if (rc != OK) return rc;
    list = json_object_get(root, "siblings");
    if (!json_is_array(list) || !copy_hex(commit, text_of(root, "sha"), 40))
        rc = err_set(e, E_FORMAT,
                     "the hub's list of files has no 'sha' of 40 digits, or no 'siblings'");
    json_array_foreach (list, i, s)
        if (rc == OK) rc = add_sibling(out, s, e);
    hub_files_sort(out);
    if (rc == OK && has_duplicates(out)) rc = err_set(e, E_FORMAT, "the hub lists a file twice");
    json_decref(root);
    return rc;
}

/* ---- headers ---- */

void hub_head_init(struct hub_head *h)
{
    *h = (struct hub_head){ .length = -1, .first = -1, .last = -1, .all = -1, .linked_size = -1 };
}

static void begin_reply(struct hub_head *h, struct str line)
{
    int64_t status = 0;
    const char *space = memchr(line.p, ' ', line.n);
    struct str rest = space ? str_skip(line, (size_t)(space - line.p) + 1) : STR("");

    h->length = h->first = h->last = h->all = -1;
    h->etag[0] = h->location[0] = 0;
    h->status = str_to_i64(str_take(rest, 3), &status) && status >= 100 ? (int)status : 0;
}

static bool is_header(struct str name, const char *want)
{
    return name.n == strlen(want) && strncasecmp(name.p, want, name.n) == 0;
}

static void copy_printable(char *to, size_t cap, struct str from)
{
    size_t n = 0;

    for (size_t i = 0; i < from.n && n + 1 < cap; i++)
        if ((unsigned char)from.p[i] >= 0x20 && (unsigned char)from.p[i] < 0x7f)
            to[n++] = from.p[i];
    to[n] = 0;
}

/* "abc", W/"abc" or abc. */
static void copy_etag(char to[65], struct str v)
{
    if (str_starts(v, STR("W/"))) v = str_skip(v, 2);
    if (v.n >= 2 && v.p[0] == '"' && v.p[v.n - 1] == '"') v = str_of(v.p + 1, v.n - 2);
    copy_sum(to, v);
}

static void read_count(int64_t *to, struct str v)
{
    int64_t n;
    if (str_to_i64(v, &n) && n >= 0) *to = n;
}

/* "bytes 0-99/1000" */
static void read_range(struct hub_head *h, struct str v)
{
    ptrdiff_t dash, slash;

    if (!str_starts(v, STR("bytes "))) return;
    v = str_skip(v, 6);
    dash = str_find(v, STR("-"));
    slash = str_find(v, STR("/"));
    if (dash < 0 || slash < dash) return;
    read_count(&h->first, str_take(v, (size_t)dash));
    read_count(&h->last, str_of(v.p + dash + 1, (size_t)(slash - dash - 1)));
    read_count(&h->all, str_skip(v, (size_t)slash + 1));
}

/* A location that is too long is none. */
static void copy_location(struct hub_head *h, struct str v)
{
    if (v.n >= sizeof h->location || memchr(v.p, 0, v.n)) return;
    memcpy(h->location, v.p, v.n);
    h->location[v.n] = 0;
}

void hub_head_line(struct hub_head *h, struct str line)
{
    ptrdiff_t colon;
    struct str name, v;

    if (str_starts(line, STR("HTTP/"))) {
        begin_reply(h, line);
        return;
    }
    if ((colon = str_find(line, STR(":"))) < 0) return;
    name = str_take(line, (size_t)colon);
    v = str_trim(str_skip(line, (size_t)colon + 1));
    if (v.n == 0) return;
    if (is_header(name, "content-length")) read_count(&h->length, v);
    else if (is_header(name, "content-range")) read_range(h, v);
    else if (is_header(name, "etag")) copy_etag(h->etag, v);
    else if (is_header(name, "location")) copy_location(h, v);
    else if (is_header(name, "x-linked-etag")) copy_etag(h->linked_etag, v);
    else if (is_header(name, "x-linked-size")) read_count(&h->linked_size, v);
    else if (is_header(name, "x-repo-commit")) copy_hex(h->commit, v, 40);
    else if (is_header(name, "x-error-message")) copy_printable(h->error, sizeof h->error, v);
}
