#include "cli/conversation.h"

#include "base/file.h"
#include "base/jsonw.h"
#include "base/mem.h"

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

enum { TALK_MAX_BYTES = 64 << 20 };

static void message_release(tern_message *m)
{
    mem_free((void *)m->role);
    mem_free((void *)m->content);
}

void talk_release(struct talk *t)
{
    for (size_t i = 0; i < t->n; i++) message_release(&t->msgs[i]);
    mem_free(t->msgs);
    *t = (struct talk){ 0 };
}

static void insert(struct talk *t, size_t at, const char *role, const char *content)
{
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 16;
        t->msgs = mem_grow(t->msgs, t->cap * sizeof *t->msgs);
    }
    memmove(t->msgs + at + 1, t->msgs + at, (t->n - at) * sizeof *t->msgs);
    t->msgs[at] = (tern_message){ mem_strdup(role), mem_strdup(content) };
    t->n++;
}

static void remove_at(struct talk *t, size_t at)
{
    message_release(&t->msgs[at]);
    t->n--;
    memmove(t->msgs + at, t->msgs + at + 1, (t->n - at) * sizeof *t->msgs);
}

void talk_add(struct talk *t, const char *role, const char *content)
{
    insert(t, t->n, role, content);
}

void talk_pop(struct talk *t)
{
    if (t->n > 0) remove_at(t, t->n - 1);
}

static size_t first_turn(const struct talk *t)
{
    return t->n > 0 && strcmp(t->msgs[0].role, "system") == 0;
}

size_t talk_drop_oldest(struct talk *t)
{
    size_t at = first_turn(t), dropped = 0;

    if (at + 1 >= t->n) return 0;
    do { /* up to the next question */
        remove_at(t, at);
        dropped++;
    } while (at + 1 < t->n && strcmp(t->msgs[at].role, "user") != 0);
    return dropped;
}

void talk_clear(struct talk *t)
{
    while (t->n > first_turn(t)) talk_pop(t);
}

void talk_set_system(struct talk *t, const char *text)
{
    if (first_turn(t)) remove_at(t, 0);
    if (*text) insert(t, 0, "system", text);
}

int talk_save(const struct talk *t, const char *path, struct err *e)
{
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };
    mode_t old = umask(077);
    int rc;

    jsonw_arr(&w);
    for (size_t i = 0; i < t->n; i++) {
        jsonw_obj(&w);
        jsonw_key(&w, "role"), jsonw_str(&w, str_c(t->msgs[i].role));
        jsonw_key(&w, "content"), jsonw_str(&w, str_c(t->msgs[i].content));
        jsonw_end(&w);
    }
    jsonw_end(&w);
    buf_putc(&out, '\n');
    rc = file_replace(path, buf_str(&out), e);
    umask(old);
    buf_release(&out);
    return rc;
}

static bool is_role(const char *s)
{
    return s && (strcmp(s, "system") == 0 || strcmp(s, "user") == 0 || strcmp(s, "assistant") == 0);
}

int talk_load(struct talk *t, const char *path, struct err *e)
{
    struct talk fresh = { 0 };
    struct buf text = { 0 };
    json_error_t why;
    json_t *root = NULL;
    int rc;

    if ((rc = file_read(&text, path, TALK_MAX_BYTES, e)) != OK) goto out;
    root = json_loadb(buf_cstr(&text), text.n, 0, &why);
    if (!json_is_array(root)) {
        rc = err_set(e, E_FORMAT, "%s: not a saved talk (a JSON list of messages)", path);
        goto out;
    }
    for (size_t i = 0; i < json_array_size(root); i++) {
        json_t *m = json_array_get(root, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        const char *content = json_string_value(json_object_get(m, "content"));
        if (!is_role(role) || !content) {
            rc = err_set(e, E_FORMAT, "%s: message %zu has no known role or no content", path, i);
            goto out;
        }
        talk_add(&fresh, role, content);
    }
    talk_release(t);
    *t = fresh;
    fresh = (struct talk){ 0 };
out:
    talk_release(&fresh);
    json_decref(root);
    buf_release(&text);
    return rc;
}
