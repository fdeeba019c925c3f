package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
)

// cachedCommand succeeds when all packages of the sets lie in the cache. Nothing is downloaded to find out.
func cachedCommand(_ context.Context, t tool, args []string) error {
	var o fetchFlags
	var sets string
	err := t.flags("cached", args, func(fs *flag.FlagSet) {
		o.define(fs)
		fs.StringVar(&sets, "sets", "", "names of `SET,...` in the lock file")
	})
	if err != nil {
		return err
	}
	f, err := o.fetcher(t)
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(sets, ",") {
		set, known := f.Lock.Sets[name]
		if !known {
			return fmt.Errorf("%s has no set %q", o.lock, name)
		}
		if missing := f.Missing(set.Packages); len(missing) > 0 {
			return fmt.Errorf("%d of %d packages of %s are not in the cache", len(missing), len(set.Packages), name)
		}
	}
	return nil
}
