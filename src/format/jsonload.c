#include "format/jsonload.h"

#include "base/jsonr.h"

#define MAX_PARTS (1u << 22) /* values: 400 MB of tree, some 350000 tensors in one header */

int jsonload(json_t **out, struct str text, size_t flags, const char *name, struct err *e)
{
    json_error_t je;

    *out = NULL;
    if (str_json_parts(text) > MAX_PARTS)
        return err_set(e, E_UNSUPPORTED, "%s: has more than %u parts of JSON", name, MAX_PARTS);
    *out = jsonr_load(text, flags, &je);
    if (*out) return OK;
    if (json_error_code(&je) == json_error_out_of_memory) {
        err_nomem(e, "a JSON tree");
        err_wrap(e, "%s", name);
        return E_NOMEM;
    }
    return err_set(e, E_FORMAT, "%s: line %d, byte %d: not JSON: %s", name, je.line, je.position,
                   je.text);
}
