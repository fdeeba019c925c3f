package llama

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

// Adapter is a LoRA adapter loaded for one model. Contexts take it by
// Context.SetAdapters; close it only when none has it in force.
type Adapter struct {
	lease
	h *C.hs_adapter
	m *Model
}

// LoadAdapter loads a LoRA GGUF. Loading is not safe beside a decode of the
// same model. Errors: the file system's, ErrAdapter, ErrClosed.
func (m *Model) LoadAdapter(path string) (*Adapter, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("llama: load adapter: %w", err)
	}
	if !m.refs.acquire() {
		return nil, fail("load adapter", ErrClosed, "model")
	}
	cp := C.CString(path)
	defer C.free(unsafe.Pointer(cp))
	var h *C.hs_adapter
	var e C.hs_err
	if rc := C.hs_adapter_load(m.h, cp, &h, &e); rc != C.HS_OK {
		m.refs.release()
		return nil, shimError("load adapter "+path, ErrAdapter, rc, &e)
	}
	a := &Adapter{h: h, m: m}
	track(&a.lease, a, "adapter", m.log)
	return a, nil
}

// Close frees the adapter.
func (a *Adapter) Close() error {
	if a.release() {
		C.hs_adapter_free(a.h)
		a.h = nil
		a.m.refs.release()
	}
	return nil
}
