/* conf.c - a gang's configuration from the words of flags and settings. */
#include "gang/launch.h"

#include "base/cores.h"
#include "base/str.h"

#include <string.h>

/* "auto", "even", or "3,1": one share for each member of a stage, the same in all stages; without tp
 * for each stage. */
static int read_split(struct gang_shape *g, const char *list, struct err *e)
{
    struct str rest = str_c(list);
    int n = g->tp > 1 ? g->tp : g->pp, got = 0;

    g->split = strcmp(list, "auto") == 0 ? SPLIT_AUTO : SPLIT_EVEN;
    if (g->split == SPLIT_AUTO || strcmp(list, "even") == 0) return OK;
    g->split = SPLIT_GIVEN;
    while (rest.n) {
        ptrdiff_t comma = str_find(rest, STR(","));
        struct str one = comma < 0 ? rest : str_take(rest, (size_t)comma);
        int64_t v;
        if (!str_to_i64(one, &v) || v < 1 || v > 1000 || got >= n) break;
        g->shares[got++] = (int)v;
        rest = str_skip(rest, one.n + 1);
    }
    if (rest.n || got != n)
        return err_set(e, E_INVALID, "split %s: must be auto, even, or %d numbers from 1 to 1000",
                       list, n);
    for (int i = n; i < g->tp * g->pp; i++) g->shares[i] = g->shares[i - n];
    return OK;
}

static const char *word(const char *s) { return s && *s ? s : NULL; }

/* "cpu", "cuda" or "cuda:N". Whether it is there, a member says (model/gangcard.h). */
static bool is_device(struct str s)
{
    int64_t n;

    if (str_eq(s, STR("cpu")) || str_eq(s, STR("cuda"))) return true;
    return str_starts(s, STR("cuda:")) && str_to_i64(str_skip(s, 5), &n) && n >= 0 && n <= 1023;
}

/* One for each member, or one for all of them. */
static int read_devices(struct gang_shape *g, const char *list, struct err *e)
{
    int n = g->tp * g->pp, got = 0;
    struct str rest = str_c(list);

    if (n < 2) return err_set(e, E_INVALID, "devices %s: tp and pp are 1, use device", list);
    while (rest.n) {
        ptrdiff_t comma = str_find(rest, STR(","));
        struct str one = comma < 0 ? rest : str_take(rest, (size_t)comma);
        if (!is_device(one) || one.n >= GANG_DEVICE || got >= n)
            return err_set(
                e, E_INVALID,
                "devices %s: must be cpu, cuda or cuda:N for each of %d members, or once "
                "for all",
                list, n);
        memcpy(g->devices[got], one.p, one.n);
        g->devices[got++][one.n] = 0;
        rest = str_skip(rest, one.n + 1);
    }
    if ((got != 1 && got != n) || list[strlen(list) - 1] == ',')
        return err_set(e, E_INVALID, "devices %s: names %d devices for %d members", list, got, n);
    for (; got < n; got++) memcpy(g->devices[got], g->devices[0], GANG_DEVICE);
    return OK;
}

static int read_way(struct gang_conf *c, const char *name, struct err *e)
{
    static const char *const names[WAYS] = { "auto", "host", "ipc", "nccl" };
    int w = 0;

    while (w < WAYS && strcmp(name, names[w]) != 0) w++;
    if (w == WAYS) return err_set(e, E_INVALID, "comm %s: must be auto, host, ipc or nccl", name);
    c->shape.way = (enum gang_way)w;
    if (w != WAY_IPC && w != WAY_NCCL) return OK;
    if (c->shape.tp < 2)
        return err_set(e, E_INVALID, "comm %s: sums are those of the members of tp, which is %d",
                       name, c->shape.tp);
    if (c->shape.wire != COMM_F32)
        return err_set(e, E_INVALID, "comm %s: sums travel as f32; with wire q8 use comm host",
                       name);
    return OK;
}

int gang_conf_of(struct gang_conf *c, const struct gang_words *w, struct err *e)
{
    bool q8 = word(w->wire) && strcmp(w->wire, "q8") == 0;
    int rc;

    *c = (struct gang_conf){ .shape = { .tp = w->tp,
                                        .pp = w->pp,
                                        .ep = w->ep,
                                        .wire = q8 ? COMM_Q8 : COMM_F32,
                                        .step_ns = (uint64_t)w->step_ms * 1000000u },
                             .transport = word(w->transport),
                             .hosts = word(w->hosts),
                             .agent = word(w->agent),
                             .listen = word(w->listen),
                             .program = word(w->program) };
    if (word(w->wire) && !q8 && strcmp(w->wire, "f32") != 0)
        return err_set(e, E_INVALID, "wire %s: must be f32 or q8", w->wire);
    if (w->step_ms < 1000 || w->step_ms > 86400000)
        return err_set(e, E_INVALID, "step-timeout of %lld ms: must be 1 s to a day",
                       (long long)w->step_ms);
    if ((rc = gang_check(c, e)) != OK) return rc;
    if (word(w->devices) && (rc = read_devices(&c->shape, w->devices, e)) != OK) return rc;
    if (word(w->comm) && (rc = read_way(c, w->comm, e)) != OK) return rc;
    return word(w->split) ? read_split(&c->shape, w->split, e) : OK;
}

int gang_check_device(const struct gang_conf *c, const char *device, struct err *e)
{
    const struct gang_shape *s = &c->shape;
    const char *leader = s->devices[0];
    bool gpu = device && strcmp(device, "cpu") != 0;

    if (!gpu || s->tp * s->pp < 2) return OK;
    if (*leader && strcmp(leader, device) != 0)
        return err_set(e, E_INVALID, "device %s, but devices begins with %s: name one of them",
                       device, leader);
    if (!*leader && s->tp > 1)
        return err_set(e, E_INVALID,
                       "tp %d: device %s is the leader's alone; name those of all members: devices "
                       "%s,%s",
                       s->tp, device, device, device);
    return OK;
}

int gang_threads(const struct gang_conf *c, int given)
{
    int n = c->shape.tp * c->shape.pp, cores = cores_find()->n;

    if (given || n < 2 || c->hosts) return given; /* zeroed: no gang */
    return cores / n > 0 ? cores / n : 1;
}

static int open_source(void *arg, struct gang **out, struct err *e)
{
    return gang_open(out, arg, e);
}

struct gang_source gang_source_of(const struct gang_conf *c)
{
    if (c->shape.tp * c->shape.pp < 2) return (struct gang_source){ 0 };
    return (struct gang_source){ .shape = c->shape, .open = open_source, .arg = (void *)c };
}
