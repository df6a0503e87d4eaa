/* member.c - the record of a worker, as JSON. */
#include "member/member.h"

#include "base/jsonr.h"
#include "base/jsonw.h"

#include <stdio.h>

void member_write(const struct member *m, struct buf *out)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "v"), jsonw_int(&w, 1);
    jsonw_key(&w, "url"), jsonw_str(&w, str_c(m->url));
    jsonw_key(&w, "instance"), jsonw_str(&w, str_c(m->instance));
    jsonw_key(&w, "draining"), jsonw_bool(&w, m->draining);
    jsonw_key(&w, "weight"), jsonw_num(&w, m->weight);
    jsonw_key(&w, "running"), jsonw_int(&w, m->running);
    jsonw_key(&w, "waiting"), jsonw_int(&w, m->waiting);
    jsonw_end(&w);
}

static int read_text(const json_t *root, const char *key, char *out, size_t cap, struct err *e)
{
    const char *s = json_string_value(json_object_get(root, key));

    if (!s || !*s || strlen(s) >= cap)
        return err_set(e, E_FORMAT, "a registered worker has no '%s' of 1 to %zu bytes", key,
                       cap - 1);
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 127)
            return err_set(e, E_FORMAT,
                           "'%s' of a registered worker has a blank or a control character", key);
    snprintf(out, cap, "%s", s);
    return OK;
}

static int read_record(struct member *m, const json_t *root, struct err *e)
{
    const json_t *weight = json_object_get(root, "weight");
    int rc;

    if (json_integer_value(json_object_get(root, "v")) != 1)
        return err_set(e, E_FORMAT,
                       "a registered worker has 'v' other than 1: another version of tern?");
    if ((rc = read_text(root, "url", m->url, sizeof m->url, e)) != OK) return rc;
    if ((rc = read_text(root, "instance", m->instance, sizeof m->instance, e)) != OK) return rc;
    m->draining = json_is_true(json_object_get(root, "draining"));
    m->weight = weight ? json_number_value(weight) : 1;
    if (!(m->weight >= 0 && m->weight <= 1000))
        return err_set(e, E_FORMAT, "'weight' of worker %s is not a number from 0 to 1000", m->url);
    m->running = (int)json_integer_value(json_object_get(root, "running"));
    m->waiting = (int)json_integer_value(json_object_get(root, "waiting"));
    return OK;
}

int member_read(struct member *out, struct str json, struct err *e)
{
    json_t *root = json.n > 65536 ? NULL : jsonr_load(json, 0, NULL);
    int rc;

    *out = (struct member){ 0 };
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, E_FORMAT, "a registered worker is not a JSON object (%.*s)",
                       STR_ARG(str_take(json, 60)));
    }
    rc = read_record(out, root, e);
    json_decref(root);
    return rc;
}

/* FNV-1a, twice with different starts. */
void member_key(const char *url, char out[40])
{
    uint64_t a = 0xcbf29ce484222325u, b = 0x84222325cbf29ce4u;

    for (const char *s = url; *s; s++) {
        a = (a ^ (unsigned char)*s) * 0x100000001b3u;
        b = (b ^ (unsigned char)*s) * 0x100000001b3u;
    }
    snprintf(out, 40, "w-%016llx%016llx", (unsigned long long)a, (unsigned long long)b);
}
