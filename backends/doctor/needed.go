package doctor

import (
	"debug/elf"

	"hearth/backends/sysroot"
)

// neededBy lists the libraries that a shared library asks for (DT_NEEDED).
func neededBy(fsys sysroot.FS, name string) ([]string, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() // read only
	e, err := elf.NewFile(f)
	if err != nil {
		return nil, err
	}
	return e.ImportedLibraries()
}
