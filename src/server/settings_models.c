/* settings_models.c - settings of single models: the table of keys that an entry of `models` in the
 * YAML file can have besides path and alias, and the models as the registry takes them.
 *
 * A key has the name, the kind and the range of the server's setting of the same name, so that both
 * accept the same values. A key that is not given leaves the server's setting in force. */
#include "base/mem.h"
#include "server/settings_impl.h"

#define AT(field) offsetof(struct model_opt, field)
#define MI (1024.0 * 1024.0)
#define YEAR (366 * 24 * 3600e3)

/* clang-format off */
const struct knob model_knobs[] = {
    [MODEL_CTX] = { .name = "ctx", .kind = KNOB_SIZE, .at = AT(ctx), .least = 0, .most = 16 * MI },
    [MODEL_KV_TOKENS] = { .name = "kv-tokens", .kind = KNOB_SIZE, .at = AT(kv_tokens), .least = 0,
                          .most = 1024 * MI },
    [MODEL_KV_SHARE] = { .name = "kv-share", .kind = KNOB_FLOAT, .at = AT(kv_share), .least = 0.001,
                         .most = 1 },
    [MODEL_MAX_SEQS] = { .name = "max-seqs", .kind = KNOB_INT, .at = AT(max_seqs), .least = 0,
                         .most = 4096 },
    [MODEL_THREADS] = { .name = "threads", .kind = KNOB_INT, .at = AT(threads), .least = 0,
                        .most = 1024 },
    [MODEL_PRIORITY] = { .name = "priority", .kind = KNOB_INT, .at = AT(priority), .least = -100,
                         .most = 100 },
    [MODEL_KEEP_ALIVE] = { .name = "keep-alive", .kind = KNOB_TIME, .at = AT(keep_alive_ms),
                           .least = 0, .most = YEAR, .words = "none|forever" },
    [MODEL_PRELOAD] = { .name = "preload", .kind = KNOB_BOOL, .at = AT(preload) },
    [MODEL_PINNED] = { .name = "pinned", .kind = KNOB_BOOL, .at = AT(pinned) },
    [MODEL_ISOLATE] = { .name = "isolate", .kind = KNOB_BOOL, .at = AT(isolate) },
    [MODEL_DEVICE] = { .name = "device", .kind = KNOB_TEXT, .at = AT(device) },
    [MODEL_CHAT_TEMPLATE] = { .name = "chat-template", .kind = KNOB_TEXT, .at = AT(chat_template) },
    [MODEL_RERANK] = { .name = "rerank", .kind = KNOB_CHOICE, .at = AT(rerank),
                       .choices = "auto|generative" },
    [MODEL_VERIFY_MANIFEST] = { .name = "verify-manifest", .kind = KNOB_CHOICE,
                                .at = AT(verify_manifest), .choices = "off|warn|require" },
    [MODEL_KEY_FILE] = { .name = "model-key-file", .kind = KNOB_TEXT, .at = AT(key_file) },
    [MODEL_KEY_COMMAND] = { .name = "model-key-command", .kind = KNOB_TEXT, .at = AT(key_command) },
    [MODEL_TIER] = { .name = "tier", .kind = KNOB_CHOICE, .at = AT(tier),
                     .choices = "light|balanced|quality" },
    [MODEL_N_KEYS] = { .name = NULL }
};
/* clang-format on */

/* Underscores may stand for dashes, and the other names of the server's setting are accepted. */
const struct knob *model_knob_find(struct str name)
{
    const struct knob *of_server = knob_find(name, false);

    for (const struct knob *k = model_knobs; k->name; k++) {
        if (str_is(name, k->name)) return k;
        if (of_server && strcmp(of_server->name, k->name) == 0) return k;
    }
    if (str_is(name, "kv_share")) return &model_knobs[MODEL_KV_SHARE];
    return NULL;
}

void settings_model_release(struct settings_model *m)
{
    mem_free((char *)m->opt.device);
    mem_free((char *)m->opt.chat_template);
    mem_free((char *)m->opt.rerank);
    mem_free((char *)m->opt.verify_manifest);
    mem_free((char *)m->opt.key_file);
    mem_free((char *)m->opt.key_command);
    mem_free((char *)m->opt.tier);
    for (int i = 0; i < m->n_aliases; i++) mem_free((char *)m->aliases[i]);
    mem_free(m->where);
    *m = (struct settings_model){ 0 };
}

static bool is_equal_key(const struct model_opt *a, const struct model_opt *b, const struct knob *k)
{
    const char *x = (const char *)a + k->at, *y = (const char *)b + k->at;

    switch (k->kind) {
    case KNOB_BOOL: return *(const bool *)x == *(const bool *)y;
    case KNOB_FLOAT: return memcmp(x, y, sizeof(double)) == 0;
    case KNOB_TEXT:
    case KNOB_CHOICE: return str_eq(str_c(*(char *const *)x), str_c(*(char *const *)y));
    default: return *(const int64_t *)x == *(const int64_t *)y;
    }
}

bool settings_model_is_equal(const struct settings_model *a, const struct settings_model *b)
{
    if (a->opt.given != b->opt.given || a->n_aliases != b->n_aliases) return false;
    for (const struct knob *k = model_knobs; k->name; k++)
        if (!is_equal_key(&a->opt, &b->opt, k)) return false;
    for (int i = 0; i < a->n_aliases; i++)
        if (strcmp(a->aliases[i], b->aliases[i]) != 0) return false;
    return true;
}

void settings_model_json(const struct settings *s, int i, struct jsonw *w)
{
    const struct settings_model *m = &s->more[i];

    if (!m->opt.given && m->n_aliases == 0) {
        jsonw_str(w, str_c(s->models[i]));
        return;
    }
    jsonw_obj(w);
    jsonw_key(w, "path"), jsonw_str(w, str_c(s->models[i]));
    if (m->n_aliases) { /* the first one is in the list of aliases */
        jsonw_key(w, "aliases"), jsonw_arr(w);
        for (int j = 0; j < m->n_aliases; j++) jsonw_str(w, str_c(m->aliases[j]));
        jsonw_end(w);
    }
    for (const struct knob *k = model_knobs; k->name; k++) {
        if (!model_has(&m->opt, (enum model_key)(k - model_knobs))) continue;
        jsonw_key(w, k->name);
        knob_write(w, &m->opt, k);
    }
    jsonw_end(w);
}

/* A model that a flag or a variable names, and the one that ships with tern, has no `where`. */
int settings_items(const struct settings *s, struct registry_item *out)
{
    for (int i = 0; i < s->n_models; i++) {
        const struct settings_model *m = &s->more[i];
        struct registry_item *item = &out[i];

        *item = (struct registry_item){ .path = s->models[i], .opt = m->opt, .where = m->where };
        item->origin = m->where ? REGISTRY_CONFIG : REGISTRY_FLAG;
        if (i >= s->n_aliases && m->n_aliases == 0) continue;
        item->aliases[item->n_aliases++] = i < s->n_aliases ? s->aliases[i] : "";
        for (int j = 0; j < m->n_aliases; j++) item->aliases[item->n_aliases++] = m->aliases[j];
    }
    return s->n_models;
}

const char *settings_find_alias(const struct settings *s, const char *alias)
{
    for (int i = 0; i < s->n_models; i++) {
        const struct settings_model *m = &s->more[i];

        if (i < s->n_aliases && strcmp(s->aliases[i], alias) == 0) return s->models[i];
        for (int j = 0; j < m->n_aliases; j++)
            if (strcmp(m->aliases[j], alias) == 0) return s->models[i];
    }
    return NULL;
}
