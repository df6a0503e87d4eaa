#include "cli/conversation.h"

#include "base/file.h"
#include "base/jsonr.h"
#include "base/jsonw.h"
#include "base/mem.h"

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_FILE_BYTES = 64 << 20 };

/* tern_message has const strings; here they are our own. */
static void release_message(tern_message *m)
{
    mem_free((void *)m->role);
    mem_free((void *)m->content);
}

void conversation_release(struct conversation *c)
{
    for (size_t i = 0; i < c->n; i++) release_message(&c->msgs[i]);
    mem_free(c->msgs);
    *c = (struct conversation){ 0 };
}

/* Copies both strings first, so that a failure changes nothing. */
static bool insert_message(struct conversation *c, size_t at, const char *role, const char *content)
{
    tern_message m = { mem_strdup(role), mem_strdup(content) };

    if (!m.role || !m.content || !mem_ensure(c->msgs, c->cap, c->n + 1)) {
        release_message(&m);
        return false;
    }
    memmove(c->msgs + at + 1, c->msgs + at, (c->n - at) * sizeof *c->msgs);
    c->msgs[at] = m;
    c->n++;
    return true;
}

static void remove_message(struct conversation *c, size_t at)
{
    release_message(&c->msgs[at]);
    c->n--;
    memmove(c->msgs + at, c->msgs + at + 1, (c->n - at) * sizeof *c->msgs);
}

bool conversation_add(struct conversation *c, const char *role, const char *content)
{
    return insert_message(c, c->n, role, content);
}

void conversation_pop(struct conversation *c)
{
    if (c->n > 0) remove_message(c, c->n - 1);
}

/* The index of the first message behind the system message. */
static size_t first_after_system(const struct conversation *c)
{
    return c->n > 0 && strcmp(c->msgs[0].role, "system") == 0;
}

size_t conversation_drop_oldest(struct conversation *c)
{
    size_t at = first_after_system(c), dropped = 0;

    if (at + 1 >= c->n) return 0;
    do { /* until the next question is the oldest */
        remove_message(c, at);
        dropped++;
    } while (at + 1 < c->n && strcmp(c->msgs[at].role, "user") != 0);
    return dropped;
}

void conversation_clear(struct conversation *c)
{
    while (c->n > first_after_system(c)) conversation_pop(c);
}

/* The new message is inserted before the old one is removed, so that a failure changes nothing. */
bool conversation_set_system(struct conversation *c, const char *text)
{
    size_t old = first_after_system(c);

    if (*text && !insert_message(c, 0, "system", text)) return false;
    if (old) remove_message(c, *text ? 1 : 0);
    return true;
}

/* umask: a conversation is private, and file_replace creates the file with the default mode. */
int conversation_save(const struct conversation *c, const char *path, struct err *e)
{
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };
    mode_t old = umask(077);
    int rc;

    jsonw_arr(&w);
    for (size_t i = 0; i < c->n; i++) {
        jsonw_obj(&w);
        jsonw_key(&w, "role"), jsonw_str(&w, str_c(c->msgs[i].role));
        jsonw_key(&w, "content"), jsonw_str(&w, str_c(c->msgs[i].content));
        jsonw_end(&w);
    }
    jsonw_end(&w);
    buf_putc(&out, '\n');
    if ((rc = buf_check(&out, e)) == OK) rc = file_replace(path, buf_str(&out), e);
    umask(old);
    buf_release(&out);
    return rc;
}

static bool is_known_role(const char *s)
{
    return s && (strcmp(s, "system") == 0 || strcmp(s, "user") == 0 || strcmp(s, "assistant") == 0);
}

/* Roles other than system, user and assistant are rejected: templates may not know them. */
static int read_messages(struct conversation *c, json_t *root, const char *path, struct err *e)
{
    if (!json_is_array(root))
        return err_set(e, E_FORMAT, "%s is not a saved conversation (a JSON list of messages)",
                       path);
    for (size_t i = 0; i < json_array_size(root); i++) {
        json_t *m = json_array_get(root, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        const char *content = json_string_value(json_object_get(m, "content"));
        if (!is_known_role(role) || !content)
            return err_set(e, E_FORMAT, "%s: message %zu has no known role or no content", path, i);
        if (!conversation_add(c, role, content)) return err_nomem(e, "the conversation");
    }
    return OK;
}

/* Loads into a new conversation first: a bad file changes nothing. */
int conversation_load(struct conversation *c, const char *path, struct err *e)
{
    struct conversation loaded = { 0 };
    struct buf text = { 0 };
    json_error_t why;
    json_t *root;
    int rc = file_read(&text, path, MAX_FILE_BYTES, e);

    if (rc != OK) goto out;
    root = jsonr_load(buf_str(&text), 0, &why);
    if (!root && json_error_code(&why) == json_error_out_of_memory)
        rc = err_nomem(e, "the conversation");
    else rc = read_messages(&loaded, root, path, e);
    json_decref(root);
    if (rc != OK) goto out;
    conversation_release(c);
    *c = loaded;
    loaded = (struct conversation){ 0 };
out:
    conversation_release(&loaded);
    buf_release(&text);
    return rc;
}
