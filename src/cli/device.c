/* device.c - flags that say where a model computes. They mean the same in every command and in
 * `tern serve`, and a value that this machine refuses is wrong usage, before any model is read. */
#include "cli/cmd.h"
#include "kernel/backend.h"
#include "model/expertplace.h"

#include <string.h>

int cmd_check_device(struct cmd_device *d, struct err *e)
{
    int rc = cpu_check_isa(d->isa, e);

    if (rc == OK) rc = cpu_check_numa(d->numa, e);
    if (rc == OK) rc = backend_check(d->device, e);
    if (rc == OK && d->gpu_layers < CMD_GPU_LAYERS_FIT)
        rc = err_set(e, E_INVALID,
                     "--gpu-layers %d: must be -1 (as many as fit), 0 (the CPU) or more",
                     d->gpu_layers);
    if (rc == OK && d->gpu_layers > 0 && (!d->device || strcmp(d->device, "cpu") == 0))
        rc =
            err_set(e, E_INVALID,
                    "--gpu-layers %d, but the device is the CPU: name a GPU with --device cuda, or "
                    "leave out --gpu-layers",
                    d->gpu_layers);
    if (rc == OK && d->gpu_layers == 0 && d->vram_only)
        rc = err_set(e, E_INVALID, "vram-only wants all layers on a GPU, but gpu-layers is 0");
    if (rc != OK) return E_INVALID;
    if (d->gpu_layers == 0) d->device = "cpu";
    if (d->gpu_layers < 0) d->gpu_layers = 0; /* an engine's "as many as fit" */
    return expert_place_check(&(struct backend_opt){ .device = d->device,
                                                     .vram_only = d->vram_only,
                                                     .cpu_moe = d->experts.cpu_moe,
                                                     .n_cpu_moe = d->experts.n_cpu_moe,
                                                     .place = d->experts.place },
                              e);
}
