/* settings_effective.c - what a setting comes to: numbers for 0 and `auto`, words for "no limit".
 *
 * Values that depend on a model are those of the first model that is loaded; without one they are
 * words, or what the engine will choose. A pure function of the settings and the facts. */
#include "base/dtype.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "server/settings_impl.h"

#define AT(field) offsetof(struct settings, field)

/* ---- one word for 0, for an empty text ---- */

struct word_row {
    size_t at;
    const char *word;
};

static const struct word_row zero_words[] = {
    { AT(models_max), "unlimited" },   { AT(load_timeout_ms), "unlimited" },
    { AT(rate_per_min), "unlimited" }, { AT(concurrency), "unlimited" },
    { AT(deadline_ms), "unlimited" },  { AT(max_tokens_default), "the rest of the context" },
    { AT(watchdog_ms), "never" },      { AT(keep_alive_ms), "none" },
};

static const struct word_row empty_words[] = {
    { AT(chat_template), "of the model" },
    { AT(allowed_hosts), "localhost, loopback addresses and host" },
    { AT(cors_origins), "none" },
};

static const char *find_word(const struct word_row *rows, size_t n, size_t at)
{
    for (size_t i = 0; i < n; i++)
        if (rows[i].at == at) return rows[i].word;
    return NULL;
}
#define FIND_WORD(rows, at) find_word(rows, sizeof(rows) / sizeof *(rows), at)

static void write_word(struct jsonw *w, const char *word) { jsonw_str(w, str_c(word)); }

/* Knobs without a rule of their own: the value, or its word. */
static void write_plain(struct jsonw *w, const struct settings *s, const struct knob *k)
{
    const void *p = (const char *)s + k->at;
    const char *word = NULL;

    switch (k->kind) {
    case KNOB_INT:
    case KNOB_SIZE:
    case KNOB_TIME:
        if (*(const int64_t *)p == 0) word = FIND_WORD(zero_words, k->at);
        break;
    case KNOB_TEXT:
    case KNOB_SET:
        if (!**(char *const *)p && !(word = FIND_WORD(empty_words, k->at))) word = "none";
        break;
    default: break;
    }
    if (word) write_word(w, word);
    else if (k->kind == KNOB_LIST) knob_write_list(w, s, k);
    else knob_write(w, s, k);
}

/* ---- rules ---- */

typedef void rule_fn(struct jsonw *w, const struct settings *s, const struct settings_facts *f);

static bool is_on_cpu(const struct settings *s)
{
    return strcmp(s->device, "cpu") == 0 || (s->gpu_layers == 0 && !s->vram_only);
}

/* v: of the settings; used: of the loaded model, 0: there is none. */
static void write_count(struct jsonw *w, int64_t v, int64_t used, const char *word)
{
    if (used || v) jsonw_int(w, used ? used : v);
    else write_word(w, word);
}

static void write_device(struct jsonw *w, const struct settings *s, const struct settings_facts *f)
{
    if (f->model) write_word(w, engine_info_last(f->model)->name);
    else write_word(w, is_on_cpu(s) ? "cpu" : s->device);
}

static void write_isa(struct jsonw *w, const struct settings *s, const struct settings_facts *f)
{
    bool is_auto = strcmp(s->isa, "auto") == 0;
    write_word(w, is_auto && s->isa_auto ? s->isa_auto
                  : is_auto              ? "the best of this machine"
                                         : s->isa);
    (void)f;
}

static void write_numa(struct jsonw *w, const struct settings *s, const struct settings_facts *f)
{
    write_word(w, f->numa && strcmp(s->numa, "auto") == 0 ? f->numa : s->numa);
}

static void write_gpu_layers(struct jsonw *w, const struct settings *s,
                             const struct settings_facts *f)
{
    int64_t n = 0;

    for (int i = 0; f->model && i < f->model->n_devices; i++)
        if (strcmp(f->model->device[i].name, "cpu") != 0) n += f->model->device[i].n_layers;
    if (f->model || is_on_cpu(s)) jsonw_int(w, n);
    else write_count(w, s->gpu_layers > 0 ? s->gpu_layers : 0, 0, "as many as fit");
}

static void write_threads(struct jsonw *w, const struct settings *s, const struct settings_facts *f)
{
    write_count(w, s->threads, s->threads ? 0 : f->n_cores, "one per core");
}

/* The sizes of the loaded model's engine, else what an engine will choose. 0: not known. */
static struct engine_opt sizes_of(const struct settings *s, const struct settings_facts *f)
{
    struct engine_opt o = { .n_ctx = (int)s->ctx,
                            .kv_tokens = (int)s->kv_tokens,
                            .max_batch = (int)s->max_batch,
                            .max_seqs = (int)s->max_seqs,
                            .max_requests = (int)s->max_requests,
                            .max_queue_tokens = (int)s->max_queue_tokens };

    if (f->model) return f->model->opt;
    engine_expect(&o, !is_on_cpu(s));
    return o;
}

static void write_ctx(struct jsonw *w, const struct settings *s, const struct settings_facts *f)
{
    write_count(w, 0, sizes_of(s, f).n_ctx, "as trained, as far as memory allows");
}

static void write_kv_tokens(struct jsonw *w, const struct settings *s,
                            const struct settings_facts *f)
{
    write_count(w, 0, sizes_of(s, f).kv_tokens, "a share of the free memory");
}

static void write_max_seqs(struct jsonw *w, const struct settings *s,
                           const struct settings_facts *f)
{
    write_count(w, 0, sizes_of(s, f).max_seqs, "16 to 256, by the memory of the GPU");
}

static void write_max_batch(struct jsonw *w, const struct settings *s,
                            const struct settings_facts *f)
{
    write_count(w, 0, sizes_of(s, f).max_batch, "");
}

static void write_max_requests(struct jsonw *w, const struct settings *s,
                               const struct settings_facts *f)
{
    write_count(w, 0, sizes_of(s, f).max_requests, "16 times max-seqs");
}

static void write_queue_tokens(struct jsonw *w, const struct settings *s,
                               const struct settings_facts *f)
{
    write_count(w, 0, sizes_of(s, f).max_queue_tokens, "64 contexts of up to 4096 tokens");
}

/* By the names that the setting has. */
static void write_kv_type(struct jsonw *w, const struct settings *s, const struct settings_facts *f)
{
    static const struct {
        enum dtype type;
        const char *name;
    } names[] = { { DT_F16, "f16" },
                  { DT_BF16, "bf16" },
                  { DT_Q8_0, "q8_0" },
                  { DT_F8_E4M3, "f8" },
                  { DT_F32, "f32" } };
    const char *given = strcmp(s->kv_type, "auto") == 0 ? "f16" : s->kv_type;
    enum dtype type = dtype_by_name(str_c(f->model ? f->model->kv_type : given));

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].type == type) given = names[i].name;
    write_word(w, given);
}

static void write_memory_limit(struct jsonw *w, const struct settings *s,
                               const struct settings_facts *f)
{
    if (s->memory_limit < 0)
        write_count(w, 0, (int64_t)(f->memory < INT64_MAX ? f->memory : 0), "what the machine has");
    else write_count(w, s->memory_limit, 0, "unlimited");
}

static void write_port(struct jsonw *w, const struct settings *s, const struct settings_facts *f)
{
    if (!*s->host) write_word(w, "none");
    else write_count(w, s->port, f->port, "any free port");
}

static void write_connections(struct jsonw *w, const struct settings *s,
                              const struct settings_facts *f)
{
    write_count(w, s->max_connections, f->max_conns, "");
}

static void write_tenant_bodies(struct jsonw *w, const struct settings *s,
                                const struct settings_facts *f)
{
    bool keys = f->has_keys || *s->api_key || *s->api_key_file;
    write_count(w,
                s->max_tenant_bodies ? s->max_tenant_bodies
                : keys               ? s->max_bodies / 2
                                     : 0,
                0, "unlimited");
}

static void write_data_dir(struct jsonw *w, const struct settings *s,
                           const struct settings_facts *f)
{
    write_word(w, *s->data_dir ? s->data_dir : "~/.local/state/tern/HOST-PORT");
    (void)f;
}

static void write_inflight(struct jsonw *w, const struct settings *s,
                           const struct settings_facts *f)
{
    int64_t seqs = sizes_of(s, f).max_seqs;
    write_count(w, s->batch_inflight,
                s->batch_inflight || !seqs ? 0
                : seqs > 1                 ? seqs / 2
                                           : 1,
                "half of max-seqs");
}

static void write_transport(struct jsonw *w, const struct settings *s,
                            const struct settings_facts *f)
{
    (void)f;
    write_word(w, strcmp(s->transport, "auto") != 0 ? s->transport : *s->hosts ? "tcp" : "shm");
}

static const struct {
    size_t at;
    rule_fn *write;
} rules[] = {
    { AT(device), write_device },
    { AT(isa), write_isa },
    { AT(numa), write_numa },
    { AT(gpu_layers), write_gpu_layers },
    { AT(threads), write_threads },
    { AT(transport), write_transport },
    { AT(ctx), write_ctx },
    { AT(kv_tokens), write_kv_tokens },
    { AT(max_seqs), write_max_seqs },
    { AT(max_batch), write_max_batch },
    { AT(max_requests), write_max_requests },
    { AT(max_queue_tokens), write_queue_tokens },
    { AT(kv_type), write_kv_type },
    { AT(memory_limit), write_memory_limit },
    { AT(port), write_port },
    { AT(max_connections), write_connections },
    { AT(max_tenant_bodies), write_tenant_bodies },
    { AT(data_dir), write_data_dir },
    { AT(batch_inflight), write_inflight },
};

void knob_write_effective(struct jsonw *w, const struct settings *s, const struct knob *k,
                          const struct settings_facts *f)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].at == k->at) {
            rules[i].write(w, s, f);
            return;
        }
    write_plain(w, s, k);
}
