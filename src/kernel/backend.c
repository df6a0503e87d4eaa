#include "kernel/backend.h"

int backend_open(struct backend **out, const struct backend_opt *opt, struct err *e)
{
    const char *device = opt->device ? opt->device : "cpu";

    if (strcmp(device, "cpu") == 0) return cpu_open(out, opt, e);
    return err_set(e, E_UNSUPPORTED, "device \"%s\": this build runs on \"cpu\" only", device);
}

void backend_close(struct backend *be)
{
    if (be) be->close(be);
}
