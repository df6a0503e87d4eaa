/* gangflags.c - from flags to a gang. */
#include "cli/gangflags.h"

#include "base/mem.h"
#include "cli/cmd.h"
#include "cli/mpijob.h"
#include "gang/mpilink.h"
#include "model/parallel.h"

#include <string.h>
#include <unistd.h>

static int make_conf(struct gang_conf *c, const struct gangflags *f, struct err *e)
{
    struct gang_words w = { .tp = f->tp,
                            .pp = f->pp,
                            .ep = f->ep,
                            .transport = f->transport,
                            .hosts = f->hosts,
                            .agent = f->agent,
                            .listen = f->listen,
                            .program = f->program,
                            .split = f->split,
                            .wire = f->wire,
                            .devices = f->devices,
                            .comm = f->comm,
                            .step_ms = (int64_t)f->step_s * 1000 };

    return gang_conf_of(c, &w, e);
}

int gangflags_check(const struct gangflags *f, const char *device, struct err *e)
{
    struct gang_conf c;

    if (make_conf(&c, f, e) != OK) return E_INVALID;
    return gang_check_device(&c, device, e);
}

static bool is_mpi(const struct gangflags *f)
{
    return f->transport && strcmp(f->transport, "mpi") == 0;
}

int gangflags_open(const struct gangflags *f, struct load_opt *o, struct err *e)
{
    struct gang_conf c;
    struct comm_link *link;
    int rc = make_conf(&c, f, e), n = f->tp * f->pp;

    if (rc != OK || n == 1) return rc;
    o->backend.n_threads = gang_threads(&c, o->backend.n_threads);
    if (is_mpi(f)) {
        if ((rc = mpilink_open(&link, e)) != OK) return rc;
        rc = gang_over(&o->gang, link, &c.shape, e);
    } else {
        rc = gang_open(&o->gang, &c, e);
    }
    if (rc != OK) return rc;
    o->shard = parallel_shard(&c.shape, 0);
    /* the gang's text: it lives as long as the members */
    if (o->gang->shape.devices[0][0]) o->backend.device = o->gang->shape.devices[0];
    return OK;
}

/* mpirun -np N [--host a,b] this command. */
static int start_job(const struct gangflags *f, int argc, char **argv, struct err *e)
{
    struct mpijob j = { .n = f->tp * f->pp, .hosts = f->hosts, .program = f->program };
    char **v = mpijob_command(&j, argc, argv);

    if (!v) return err_nomem(e, "the command of mpirun");
    execvp(v[0], v);
    mem_free(v);
    return err_set(e, E_UNSUPPORTED,
                   "mpirun is not here: install openmpi-bin, or use --transport tcp");
}

bool gangflags_mpi(const struct gangflags *f, int argc, char **argv, int *code)
{
    struct comm_link *link;
    struct err e = { 0 };
    int rc;

    if (!is_mpi(f) || f->tp * f->pp < 2) return false;
    if (!mpilink_is_job()) {
        start_job(f, argc, argv, &e);
        *code = cmd_fail(&e);
        return true;
    }
    if ((rc = mpilink_open(&link, &e)) != OK) {
        *code = cmd_fail(&e);
        return true;
    }
    if (link->rank == 0) return false;
    rc = member_serve(link, &e);
    comm_link_close(link);
    *code = cmd_result(rc, &e);
    return true;
}
