/* cmd_rekey.c - tern rekey: other keys for an encrypted model, by rewriting headers only.
 *
 * A folder is changed file by file. A run that was interrupted is repeated with the same flags: the
 * new keys open the files that have them already. The manifest, where there is one, is compared
 * before and written again after: headers are part of its sums. */
#include "base/file.h"
#include "base/keyring.h"
#include "base/mem.h"
#include "base/sealed.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "format/manifest.h"

#include <stdio.h>

static const struct verb verb = {
    "rekey",
    "tern rekey MODEL --key-file OLD --new-key-file NEW [--keep]",
    "Changes the keys that open an encrypted model (a file, or all files of a folder). Only the\n"
    "headers are written, each of them safely: after a crash the old keys or the new ones open "
    "the\n"
    "file, and the same command finishes. The keys of NEW replace all others; with --keep they "
    "are\n"
    "added, up to 8. --remove takes the key with this id out, --list prints the ids. A server "
    "that\n"
    "runs the model is not disturbed. A key that was copied together with the files before still\n"
    "opens that copy: encrypt again where it was stolen.\n\n"
    "examples:\n"
    "  tern rekey sealed/model.gguf --key-file old.key --new-key-file new.key\n"
    "  tern rekey sealed/model.gguf --list\n"
    "  tern rekey sealed/model.gguf --key-file new.key --remove 3f2a9c04d1e87b56",
};

struct job {
    const char *model, *key_file, *key_command, *new_file, *new_command, *remove;
    bool keep, list;
    unsigned char drop[KEY_ID];
    struct keyset *old, *new;
    struct manifest files;
    char *dir;
};

static int change_file(const struct job *j, const char *path, struct err *e)
{
    int rc = OK;

    if (j->new) rc = sealed_rekey(path, j->new, j->keep || j->remove, e);
    if (rc == OK && j->remove) rc = sealed_drop_key(path, j->drop, e);
    return rc;
}

static int list_keys(const char *path, struct err *e)
{
    struct sealed_head h;
    char hex[KEY_ID_HEX];
    int rc = sealed_peek(&h, path, e);

    if (rc != OK) return rc;
    printf("%s:", path);
    for (int i = 0; i < h.n_slots; i++) {
        crypto_hex(hex, h.slots[i].id, KEY_ID);
        printf(" %s", hex);
    }
    printf("\n");
    return OK;
}

/* Files of a folder that are not encrypted are left alone; a lone one is an error. */
static int each_file(const struct job *j, struct err *e)
{
    size_t n = 0;
    int rc = OK;

    for (size_t i = 0; i < j->files.n && rc == OK; i++) {
        char *path = cli_need(path_join(j->dir, j->files.files[i].name));
        struct sealed_head h;

        rc = sealed_peek(&h, path, e);
        if (rc == OK) {
            rc = j->list ? list_keys(path, e) : change_file(j, path, e);
            n++;
        } else if (rc == E_FORMAT) {
            rc = OK;
        }
        mem_free(path);
    }
    if (rc == OK && n == 0) rc = err_set(e, E_INVALID, "%s: has no encrypted file", j->model);
    return rc;
}

static int change_model(struct job *j, struct err *e)
{
    struct manifest_result r = { .path = "" };
    int rc = manifest_check(j->model, NULL, &r, e);

    if (rc != OK && rc != E_NOTFOUND) return rc;
    rc = each_file(j, e);
    if (rc == OK && r.path[0]) rc = manifest_write(j->model, NULL, &r, e);
    return rc;
}

static int run_job(struct job *j, struct err *e)
{
    bool is_folder;
    int rc = cmd_model(&j->model, e);

    if (rc == OK) rc = keyset_open(&j->old, j->key_file, j->key_command, 0, e);
    if (rc == OK) rc = keyset_open(&j->new, j->new_file, j->new_command, 0, e);
    keyset_join(j->old);
    keyset_join(j->new);
    if (rc == OK) rc = manifest_list(j->model, &j->files, &j->dir, &is_folder, e);
    if (rc == OK) rc = j->list ? each_file(j, e) : change_model(j, e);
    keyset_close(j->old);
    keyset_close(j->new);
    manifest_release(&j->files);
    mem_free(j->dir);
    return rc;
}

static int check_flags(struct job *j, struct err *e)
{
    if (!j->model) return err_set(e, E_INVALID, "one argument is needed: an encrypted model");
    if (j->list) return OK;
    if (!j->key_file == !j->key_command)
        return err_set(e, E_INVALID, "one of --key-file and --key-command is needed");
    if (j->new_file && j->new_command)
        return err_set(e, E_INVALID, "only one of --new-key-file and --new-key-command is allowed");
    if (!j->new_file && !j->new_command && !j->remove)
        return err_set(e, E_INVALID,
                       "--new-key-file, --new-key-command, --remove or --list is "
                       "needed");
    if (j->remove && !crypto_unhex(j->drop, sizeof j->drop, str_c(j->remove)))
        return err_set(e, E_INVALID, "--remove %s: must be an id of 16 hex digits (--list)",
                       j->remove);
    return OK;
}

int cmd_rekey(int argc, char **argv)
{
    struct job j = { 0 };
    const struct arg table[] = {
        { "--key-file", "--model-key-file", ARG_STR, &j.key_file, "FILE",
          "file with a key that opens the model now" },
        { "--key-command", "--model-key-command", ARG_STR, &j.key_command, "CMD",
          "shell command that prints it instead" },
        { "--new-key-file", NULL, ARG_STR, &j.new_file, "FILE", "file with the new keys" },
        { "--new-key-command", NULL, ARG_STR, &j.new_command, "CMD",
          "shell command that prints them instead" },
        { "--keep", NULL, ARG_FLAG, &j.keep, NULL, "the keys so far open the model as well" },
        { "--remove", NULL, ARG_STR, &j.remove, "ID", "remove the key with this id" },
        { "--list", NULL, ARG_FLAG, &j.list, NULL, "print the ids of the keys; needs none" },
        { 0 },
    };
    const char *pos[1] = { NULL };
    struct err e = { 0 };
    bool helped = false;
    int n_pos = 0;

    if (args_parse(&verb, table, argc, argv, pos, 1, &n_pos, &helped, &e) != OK)
        return cmd_usage(verb.name, &e);
    if (helped) return EXIT_OK;
    j.model = pos[0];
    if (check_flags(&j, &e) != OK) return cmd_usage(verb.name, &e);
    return cmd_result(run_job(&j, &e), &e);
}
