/* ollama_models.c - Ollama's routes about models: /api/tags, /api/ps, /api/show, /api/version.
 *
 * In /api/tags each name is a model, as in Ollama: an alias or a copy is listed beside the id. A model
 * is listed as "id:latest", which finds it as its id does. Digests are no checksums: they differ
 * where id, size or time of the file do. */
#include "api/ollama_impl.h"

#include "base/jsonw.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "net/http.h"
#include "pool/pool.h"
#include "pool/prompter.h"
#include "toolcall/toolfamily.h"

#include <stdio.h>
#include <time.h>

/* Clients look at the version of the API, which they compare with the one that brought a
 * feature (VS Code: 0.6.4 or later). */
#define OLLAMA_VERSION "0.12.0"

static void write_str(struct jsonw *w, const char *key, struct str s)
{
    jsonw_key(w, key), jsonw_str(w, s);
}

void ollama_write_time(struct jsonw *w, const char *key, int64_t epoch_ms)
{
    time_t s = (time_t)(epoch_ms / 1000);
    char day[32], text[64];
    struct tm tm;

    gmtime_r(&s, &tm);
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text, sizeof text, "%s.%03d000000Z", day, (int)(epoch_ms % 1000));
    write_str(w, key, str_c(text));
}

/* ---- one model ---- */

struct facts {
    const struct pool_model *m;
    struct pool_instance *now; /* a reference; NULL: it is not loaded */
    struct engine_info info;   /* if it is; else as far as its files tell */
    struct pool_head head;     /* if it is not */
    uint64_t bytes;
};

/* The server opens no files of models that are to run in processes of their own: only their size is
 * known until they are loaded. On a request thread. */
static void get_facts(struct facts *f, struct api *a, int i)
{
    struct pool *p = a->opt.pool;

    *f = (struct facts){ .m = pool_at(p, i), .now = pool_acquire(p, i) };
    f->info.task = f->info.arch = f->info.dtype = "";
    if (f->now) {
        pool_info(f->now, &f->info);
        f->bytes = f->info.weight_bytes;
        return;
    }
    pool_head(p, i, !a->opt.forward, &f->head);
    f->info.task = f->head.task;
    f->info.arch = f->head.arch;
    f->info.dtype = f->head.dtype;
    f->info.n_params = f->head.n_params;
    f->info.n_vec = f->head.n_vec;
    f->info.opt.n_ctx = f->head.n_ctx;
    f->bytes = f->head.bytes;
}

static void write_name(struct jsonw *w, const char *key, const char *id)
{
    char text[600];

    snprintf(text, sizeof text, "%s%s", id, strchr(id, ':') ? "" : ":latest");
    write_str(w, key, str_c(text));
}

/* 64 hex digits of four FNV-1a hashes. */
static void write_digest(struct jsonw *w, const struct facts *f)
{
    char text[72];

    for (int k = 0; k < 4; k++) {
        uint64_t h = 0xcbf29ce484222325u + (uint64_t)k;
        for (const char *s = f->m->id; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
        h = (h ^ (uint64_t)f->m->created) * 0x100000001b3u;
        snprintf(text + 16 * k, 17, "%016llx", (unsigned long long)h);
    }
    write_str(w, "digest", str_c(text));
}

static void write_parameter_size(struct jsonw *w, uint64_t n)
{
    char text[32] = "";

    if (n >= 1000000000) snprintf(text, sizeof text, "%.1fB", (double)n / 1e9);
    else if (n) snprintf(text, sizeof text, "%.1fM", (double)n / 1e6);
    write_str(w, "parameter_size", str_c(text));
}

static void write_details(struct jsonw *w, const struct facts *f)
{
    struct str path = str_c(f->m->path);

    jsonw_key(w, "details"), jsonw_obj(w);
    write_str(w, "parent_model", STR(""));
    write_str(w, "format",
              str_ends(path, STR(".gguf"))                                    ? STR("gguf")
              : str_ends(path, STR(".onnx")) || !strcmp(f->info.arch, "onnx") ? STR("onnx")
                                                                              : STR("safetensors"));
    write_str(w, "family", str_c(f->info.arch));
    jsonw_key(w, "families"), jsonw_arr(w);
    if (*f->info.arch) jsonw_str(w, str_c(f->info.arch));
    jsonw_end(w);
    write_parameter_size(w, f->info.n_params);
    write_str(w, "quantization_level", str_c(f->info.dtype));
    jsonw_end(w);
}

static void write_listed(struct jsonw *w, const struct facts *f, const char *name)
{
    write_name(w, "name", name);
    write_name(w, "model", name);
    jsonw_key(w, "size"), jsonw_int(w, (int64_t)f->bytes);
    write_digest(w, f);
    write_details(w, f);
}

/* ---- lists ---- */

static void write_tag(struct jsonw *w, const struct facts *f, const char *name)
{
    jsonw_obj(w);
    write_listed(w, f, name);
    ollama_write_time(w, "modified_at", f->m->created * 1000);
    jsonw_end(w);
}

/* On a request thread, as the others here: headers of files may have to be read. */
static int write_tags(struct call *c, struct err *e)
{
    struct pool *p = c->api->opt.pool;
    struct jsonw w = { .out = &c->out };
    const char *name;
    int rc = OK;

    jsonw_obj(&w);
    jsonw_key(&w, "models"), jsonw_arr(&w);
    for (int i = 0; i < pool_n(p) && rc == OK; i++) {
        struct facts f;
        if (!pool_is_listed(p, i) || !pool_is_current(p, i)) continue;
        get_facts(&f, c->api, i);
        write_tag(&w, &f, f.m->id);
        for (int k = 0; (name = pool_alias(p, i, k)); k++) write_tag(&w, &f, name);
        pool_release(f.now);
        rc = call_check_stop(c, e);
    }
    jsonw_end(&w);
    jsonw_end(&w);
    return rc;
}

static int send_body(struct call *c, struct err *e)
{
    (void)e;
    call_send_body(c, 200);
    return OK;
}

/* Beside large bodies: the first time may take as long as one. */
static void hand_over(struct call *c, const struct call_job *job)
{
    struct err e = { 0 };

    c->local = true;
    if (call_hand_over(c, job, SIZE_MAX, true, &e) != OK) call_fail(c, &e, NULL);
}

void api_ollama_tags(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { write_tags, send_body };
    struct call *c = call_open(a, q, who, "/api/tags");

    if (!c) return;
    hand_over(c, &job);
    call_end_handler(c);
}

/* Models that never expire are shown as Ollama does it: 300 years from now. */
static void write_expiry(struct jsonw *w, const struct pool_view *v)
{
    const int64_t never = INT64_C(300) * 365 * 86400 * 1000;
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    ollama_write_time(w, "expires_at",
                      (int64_t)t.tv_sec * 1000 + (v->expires_ms < 0 ? never : v->expires_ms));
}

void api_ollama_ps(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/api/ps");
    struct jsonw w = { 0 };

    if (!c) return;
    w.out = &c->out;
    jsonw_obj(&w);
    jsonw_key(&w, "models"), jsonw_arr(&w);
    for (int i = 0; i < pool_n(a->opt.pool); i++) {
        struct facts f = { .m = pool_at(a->opt.pool, i), .now = pool_acquire(a->opt.pool, i) };
        struct pool_view v;
        if (f.now) {
            const struct engine_device *d;
            bool on_gpu;
            pool_info(f.now, &f.info);
            f.bytes = f.info.weight_bytes;
            d = engine_info_last(&f.info);
            on_gpu = d->name && str_starts(str_c(d->name), STR("cuda"));
            pool_view(a->opt.pool, i, &v);
            jsonw_obj(&w);
            write_listed(&w, &f, f.m->id);
            write_expiry(&w, &v);
            jsonw_key(&w, "size_vram"), jsonw_int(&w, on_gpu ? (int64_t)d->weight_bytes : 0);
            jsonw_key(&w, "context_length"), jsonw_int(&w, f.info.opt.n_ctx);
            jsonw_end(&w);
        }
        pool_release(f.now);
    }
    jsonw_end(&w);
    jsonw_end(&w);
    call_send_body(c, 200);
    call_end_handler(c);
}

/* ---- show ---- */

static void write_model_info(struct jsonw *w, const struct facts *f)
{
    char key[96];

    jsonw_key(w, "model_info"), jsonw_obj(w);
    if (*f->info.arch) {
        write_str(w, "general.architecture", str_c(f->info.arch));
        jsonw_key(w, "general.parameter_count"), jsonw_int(w, (int64_t)f->info.n_params);
        snprintf(key, sizeof key, "%.60s.context_length", f->info.arch);
        jsonw_key(w, key), jsonw_int(w, f->info.opt.n_ctx);
        snprintf(key, sizeof key, "%.60s.embedding_length", f->info.arch);
        jsonw_key(w, key), jsonw_int(w, f->info.n_vec);
    }
    jsonw_end(w);
}

/* Tools work with every model that generates; a model of which nothing is known is taken for one. */
static void write_capabilities(struct jsonw *w, const struct facts *f, struct str template)
{
    bool vectors = !strcmp(f->info.task, "embed") || !strcmp(f->info.task, "classify");

    jsonw_key(w, "capabilities"), jsonw_arr(w);
    if (vectors) {
        jsonw_str(w, STR("embedding"));
    } else {
        jsonw_str(w, STR("completion"));
        jsonw_str(w, STR("tools"));
        if (template.n && toolfamily_find_reasoning(template)) jsonw_str(w, STR("thinking"));
    }
    jsonw_end(w);
}

static int write_shown(struct call *c, struct err *e)
{
    struct jsonw w = { .out = &c->out };
    struct facts f;
    struct str template = STR("");

    (void)e;
    get_facts(&f, c->api, c->next_model);
    if (f.now) template = pool_template(f.now);
    jsonw_obj(&w);
    write_str(&w, "license", STR(""));
    write_str(&w, "modelfile", STR(""));
    write_str(&w, "parameters", STR(""));
    write_str(&w, "template", template);
    write_details(&w, &f);
    write_model_info(&w, &f);
    write_capabilities(&w, &f, template);
    ollama_write_time(&w, "modified_at", f.m->created * 1000);
    jsonw_end(&w);
    pool_release(f.now);
    return OK;
}

int ollama_read_model(struct call *c, struct str *name, int *index, struct err *e)
{
    struct body_reader r = { .arena = &c->arena, .err = e, .param = c->p.param };
    const json_t *v;
    int rc;

    if ((rc = body_parse(&c->p.root, http_body(c->q), NULL, e)) != OK) return rc;
    if (!(v = json_object_get(c->p.root, "model"))) v = json_object_get(c->p.root, "name");
    if (!json_is_string(v) || !json_string_length(v))
        return body_refuse(&r, "model", "is required: the name of a model");
    *name = body_str(v);
    *index = pool_index(c->api->opt.pool, *name);
    if (*index >= 0) return OK;
    return err_set(e, E_NOTFOUND, "model '%.*s' not found", STR_ARG(str_take(body_str(v), 100)));
}

void api_ollama_show(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { write_shown, send_body };
    struct call *c = call_open(a, q, who, "/api/show");
    struct err e = { 0 };
    struct str name;

    if (!c) return;
    if (ollama_read_model(c, &name, &c->next_model, &e) == OK) hand_over(c, &job);
    else call_fail(c, &e, c->p.param);
    call_end_handler(c);
}

void api_ollama_version(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/api/version");

    if (!c) return;
    buf_puts(&c->out, "{\"version\":\"" OLLAMA_VERSION "\",\"server\":\"tern\"}");
    call_send_body(c, 200);
    call_end_handler(c);
}
