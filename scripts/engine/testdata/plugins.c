/* Loads the plugins given as arguments and prints how many devices each brings. */
#include <ggml-backend.h>
#include <stdio.h>

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        ggml_backend_reg_t reg = ggml_backend_load(argv[i]);
        if (!reg) {
            printf("%s refused\n", argv[i]);
            return 1;
        }
        printf("%s %zu\n", ggml_backend_reg_name(reg), ggml_backend_reg_dev_count(reg));
    }
    return 0;
}
