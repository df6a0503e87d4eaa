/* gang.c - a gang whose members were started by somebody else. */
#include "comm/gang.h"

#include "base/mem.h"

static void close_gang(struct gang *g)
{
    if (!g->ends) g->link->abort(g->link, "the leader ends the gang");
    comm_link_close(g->link);
    mem_free(g);
}

int gang_over(struct gang **out, struct comm_link *link, const struct gang_shape *shape,
              struct err *e)
{
    struct gang *g = mem_new(struct gang);

    if (g && link->size == shape->tp * shape->pp) {
        *g = (struct gang){ .link = link, .shape = *shape, .close = close_gang };
        *out = g;
        return OK;
    }
    if (g)
        err_set(e, E_INVALID, "tp %d and pp %d are %d members, but there are %d", shape->tp,
                shape->pp, shape->tp * shape->pp, link->size);
    else err_nomem(e, "a gang");
    comm_link_close(link);
    mem_free(g);
    return g ? E_INVALID : E_NOMEM;
}
