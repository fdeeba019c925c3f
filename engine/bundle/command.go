package bundle

import (
	"path/filepath"
	"strings"
)

// Command is how to start a program of the bundle: exec.Cmd{Path: Path, Args: Argv}, with Env added to the
// environment chosen by the caller.
type Command struct {
	Path string   // absolute path of the file to execute: the loader, or the program itself
	Argv []string // Argv[0] included
	Env  []string // KEY=VALUE pairs the program needs to find its libraries; often empty
}

// Command returns the command that starts a program linked against the bundle. A bare bin names a binary of the
// bundle (bin/hearth-engine); one with a slash is used as it is.
//
// With a loader the program runs as `loader --library-path DIRS PROGRAM args...`: it uses the bundle's libc and
// nothing leaks into children through LD_LIBRARY_PATH. Inside it, /proc/self/exe is the loader and os.Args[0] the
// program. Without a loader the library path, if any, goes into Env.
func (b Bundle) Command(bin string, args ...string) Command {
	program := bin
	if !strings.ContainsRune(bin, filepath.Separator) {
		program = filepath.Join(b.Dir, "bin", bin)
	}
	dirs := strings.Join(b.LibraryDirs(), ":")
	var cmd Command
	if b.Loader == "" {
		cmd.Path = program
		cmd.Argv = append([]string{program}, args...)
		if dirs != "" {
			cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+dirs)
		}
		return cmd
	}
	loader := b.Path(b.Loader)
	cmd.Path = loader
	cmd.Argv = append([]string{loader, "--library-path", dirs, program}, args...)
	return cmd
}
