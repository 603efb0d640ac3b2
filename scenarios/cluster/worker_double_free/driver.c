/* WSL2's driver, as far as it is asked for: its first call frees a block twice. */
#include <stdlib.h>

static int free_twice(void) {
    void *volatile block = malloc(64);
    free(block);
    free(block);
    return 0;
}

int cuInit(unsigned flags) { return free_twice(); }
int cuDriverGetVersion(int *version) { return free_twice(); }
int cuGetProcAddress(const char *name, void **found, int version, unsigned long flags) { return free_twice(); }
int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long flags, int *status) {
    return free_twice();
}
int nvmlInit_v2(void) { return free_twice(); }
int nvmlInitWithFlags(unsigned flags) { return free_twice(); }
