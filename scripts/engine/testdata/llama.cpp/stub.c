int llama_stub(void) { return 7; }
