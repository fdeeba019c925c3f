package layout

import (
	"fmt"
	"os"

	"hearth/backends/codeobject"
)

// GFXTargets reads which gfx targets a HIP library has device code for, without loading it. note says why the list may
// not be all; it is empty when the list is certain.
func GFXTargets(path string) (targets []string, note string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, "", fmt.Errorf("read gfx targets: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, "", fmt.Errorf("read gfx targets: %w", err)
	}
	lib, err := codeobject.Inspect(f, st.Size())
	if err != nil {
		return nil, "", fmt.Errorf("read gfx targets of %s: %w", path, err)
	}
	for _, t := range lib.Targets {
		targets = append(targets, t.String())
	}
	if len(targets) == 0 && lib.Unknown == "" {
		return nil, "the HIP plugin has no device code", nil
	}
	return targets, lib.Unknown, nil
}
