/* servecheck.c - see servecheck.h. */
#include "cli/servecheck.h"

#include "base/arena.h"
#include "base/file.h"
#include "base/keyring.h"
#include "base/mem.h"
#include "format/source.h"
#include "jinja/chattemplate.h"
#include "jinja/jinja.h"
#include "kernel/backend.h"
#include "kernel/cpu/kernels.h"
#include "model/expertplace.h"
#include "model/parallel.h"
#include "model/shard.h"

#include <string.h>
#include <unistd.h>

/* The message names the setting already; what this machine lacks is wrong configuration. */
static int refuse(struct err *e) { return e->code = E_INVALID; }

static bool is_cpu(const char *device) { return strcmp(device, "cpu") == 0; }

/* The device of a model that has a GPU of its own; NULL: there is none. */
static const char *find_gpu_model(const struct settings *s)
{
    for (int i = 0; i < s->n_models; i++)
        if (s->more[i].opt.device && !is_cpu(s->more[i].opt.device)) return s->more[i].opt.device;
    return NULL;
}

static int check_experts(const struct settings *s, struct err *e)
{
    const char *own = is_cpu(s->device) ? find_gpu_model(s) : NULL;
    struct backend_opt o = { .device = own ? own : s->device,
                             .vram_only = s->vram_only,
                             .cpu_moe = s->cpu_moe,
                             .n_cpu_moe = (int)s->n_cpu_moe,
                             .place = s->place };

    return expert_place_check(&o, e);
}

static int check_devices(const struct settings *s, struct err *e)
{
    if (backend_check(s->device, e) != OK) return refuse(e);
    if (s->vram_only && (is_cpu(s->device) || s->gpu_layers == 0))
        return err_set(e, E_INVALID, "vram-only wants all layers on a GPU, but %s",
                       s->gpu_layers == 0 ? "gpu-layers is 0" : "device is 'cpu'");
    if (s->gpu_layers > 0 && is_cpu(s->device) && !find_gpu_model(s))
        return err_set(e, E_INVALID,
                       "gpu-layers is %lld, but device is 'cpu': name a GPU with --device cuda, or "
                       "leave out gpu-layers",
                       (long long)s->gpu_layers);
    return check_experts(s, e);
}

static int check_cpu(struct settings *s, struct err *e)
{
    struct kernels k;

    if (cpu_check_isa(s->isa, e) != OK) return refuse(e);
    if (cpu_check_numa(s->numa, e) != OK) return refuse(e);
    if (kernels_find(&k, NULL, NULL) == OK) s->isa_auto = k.name;
    return OK;
}

static int check_file(const char *name, const char *path, struct err *e)
{
    if (!*path || access(path, R_OK) == 0) return OK;
    return err_set(e, E_INVALID, "%s is '%s': the file cannot be read", name, path);
}

/* A template that does not parse would fail every load. */
static int check_template(const char *path, struct err *e)
{
    struct chat_template_source src = { .name = path };
    struct chat_template *t = NULL;
    struct buf text = { 0 };
    int rc;

    if (!*path) return OK;
    rc = file_read(&text, path, JINJA_MAX_SOURCE, e);
    src.text = buf_str(&text);
    if (rc == OK) rc = chat_template_open(&t, &src, e);
    if (rc != OK) err_wrap(e, "chat-template is '%s'", path);
    chat_template_close(t);
    buf_release(&text);
    return rc == OK ? OK : refuse(e);
}

/* The file only: a command may ask somebody, and runs when a model is loaded. */
static int check_keys(const char *file, const char *command, struct err *e)
{
    struct keyset *keys = NULL;
    int rc;

    if (*file && *command)
        return err_set(e, E_INVALID,
                       "model-key-file is '%s' and model-key-command is '%s': give one of them",
                       file, command);
    rc = keyset_open(&keys, file, NULL, 0, e);
    keyset_close(keys);
    if (rc == OK) return OK;
    err_wrap(e, "model-key-file is '%s'", file);
    return refuse(e);
}

/* A folder that exists and can be written to, or can be made: the check itself makes none. parents:
 * the folders above it are made as well. */
static int check_folder(const char *name, const char *path, bool parents, struct err *e)
{
    char *part;
    int rc = OK;

    if (!*path) return OK;
    if (!(part = mem_strdup(path))) return err_nomem(e, "the path of a folder");
    for (bool first = true; access(part, F_OK) != 0 && (first || parents); first = false) {
        char *end = part + strlen(part);
        while (end > part && end[-1] == '/') end--;
        while (end > part && end[-1] != '/') end--;
        if (end > part + 1) end--;
        if (end == part) *end++ = '.'; /* one name below the current folder */
        *end = 0;
    }
    if (!file_is_dir(part) || access(part, W_OK | X_OK) != 0)
        rc = err_set(e, E_INVALID, "%s is '%s': '%s' %s", name, path, part,
                     access(part, F_OK) != 0 ? "does not exist"
                     : !file_is_dir(part)    ? "is not a folder"
                                             : "cannot be written to");
    mem_free(part);
    return rc;
}

static int check_folders(const struct settings *s, struct err *e)
{
    int rc = check_folder("data-dir", s->data_dir, true, e);

    if (rc != OK || strcmp(s->park, "file") != 0) return rc;
    if (!*s->park_dir)
        return err_set(e, E_INVALID, "park is 'file', but park-dir is '': name a folder");
    return check_folder("park-dir", s->park_dir, false, e);
}

/* Files of the server itself, which tern gateway has too. */
static int check_listening(const struct settings *s, struct err *e)
{
    int rc;

    if ((rc = check_file("tls-cert", s->tls_cert, e)) != OK) return rc;
    if ((rc = check_file("tls-key", s->tls_key, e)) != OK) return rc;
    return check_file("api-key-file", s->api_key_file, e);
}

static int check_gateway_files(const struct settings *s, struct err *e)
{
    int rc = check_file("peer-ca", s->peer_ca, e);

    return rc == OK ? check_file("policy-script", s->policy_script, e) : rc;
}

static int check_files(const struct settings *s, struct err *e)
{
    int rc;

    if ((rc = check_listening(s, e)) != OK) return rc;
    if ((rc = check_template(s->chat_template, e)) != OK) return rc;
    if ((rc = check_file("models-dir", s->models_dir, e)) != OK) return rc;
    if ((rc = check_keys(s->model_key_file, s->model_key_command, e)) != OK) return rc;
    return check_folders(s, e);
}

/* A template of a model of the settings file: a relative path is one of the folder of models. */
static int check_model_template(const struct settings *s, const char *path, struct err *e)
{
    char *full;
    int rc;

    if (!*path || *path == '/' || !*s->models_dir) return check_template(path, e);
    if (!(full = path_join(s->models_dir, path))) return err_nomem(e, "the path of a template");
    rc = check_template(full, e);
    mem_free(full);
    return rc;
}

static int check_model(const struct settings *s, const struct model_opt *o, struct err *e)
{
    int rc;

    if (o->device && (rc = backend_check(o->device, e)) != OK) return rc;
    if (o->chat_template && (rc = check_model_template(s, o->chat_template, e)) != OK) return rc;
    return check_keys(o->key_file ? o->key_file : "", o->key_command ? o->key_command : "", e);
}

/* Settings of single models in the settings file. */
static int check_models(const struct settings *s, struct err *e)
{
    for (int i = 0; i < s->n_models; i++) {
        if (check_model(s, &s->more[i].opt, e) == OK) continue;
        err_wrap(e, "%s", s->more[i].where ? s->more[i].where : s->models[i]);
        return refuse(e);
    }
    return OK;
}

/* Can the model be divided among the members? Whether the model can be read at all is found at its
 * load, which may be much later. */
static int check_division(const struct settings *s, const char *path, struct err *e)
{
    struct shard_opt opt = parallel_shard(&s->gang.shape, 0);
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    int rc = OK;

    if (file_exists(path) && source_open_head(&src, path, NULL) == OK &&
        hparams_read(&hp, &a, src, NULL) == OK)
        rc = shard_check(&hp, &opt, e);
    source_close(src);
    arena_release(&a);
    if (rc == OK) return OK;
    err_wrap(e, "model '%s'", path);
    return refuse(e);
}

static int check_gangs(struct settings *s, struct err *e)
{
    int rc = settings_gang(s, e);

    if (s->tp * s->pp < 2) return rc;
    for (int i = 0; i < s->n_models && rc == OK; i++) rc = check_division(s, s->models[i], e);
    return rc;
}

int servecheck(struct settings *s, struct err *e)
{
    int rc;

    if ((rc = check_cpu(s, e)) != OK) return rc;
    if ((rc = check_devices(s, e)) != OK) return rc;
    if ((rc = check_files(s, e)) != OK) return rc;
    if ((rc = check_models(s, e)) != OK) return rc;
    if ((rc = check_gateway_files(s, e)) != OK) return rc;
    return check_gangs(s, e);
}

int servecheck_role(const struct settings *s, struct err *e)
{
    for (const struct knob *k = settings_knobs; k->name; k++)
        if (k->used_by == USED_BY_GATEWAY && settings_from(s, k) != FROM_DEFAULT)
            return err_set(e, E_INVALID,
                           "%s is a setting of tern gateway: tern serve does not use it", k->name);
    return OK;
}

int servecheck_gateway(const struct settings *s, struct err *e)
{
    int rc = check_listening(s, e);

    return rc == OK ? check_gateway_files(s, e) : rc;
}
