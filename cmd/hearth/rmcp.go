package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"hearth/models"
	"hearth/models/hub"
)

func (a *app) rmCmd() *cobra.Command {
	var cache bool
	c := &cobra.Command{
		Use:               "rm MODEL...",
		ValidArgsFunction: a.completeModels(-1),
		Aliases:           []string{"remove"},
		Short:             "remove models",
		Long:              "Removes models from the store. Files that were added by path stay where they are.",
		Args:              args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			store, err := a.store(cfg)
			if err != nil {
				return err
			}
			var errs []error
			for _, name := range argv {
				errs = append(errs, a.remove(cmd, store, name, cfg.Dirs.Cache, cache))
			}
			return errors.Join(errs...)
		},
	}
	c.Flags().BoolVar(&cache, "cache", false, "remove the copy in the download cache too")
	return c
}

func (a *app) remove(cmd *cobra.Command, store *models.Store, name, cacheDir string, cache bool) error {
	e, err := store.Resolve(name)
	if err != nil {
		return err
	}
	cached := cachedCopy(cacheDir, e)
	if cached != "" && cache {
		// Before the model: its files then have one link less, and the freed space is counted where it is freed.
		if err := os.RemoveAll(cached); err != nil {
			return err
		}
		cached = ""
	}
	freed, err := store.Remove(cmd.Context(), e.Name)
	if err != nil {
		return err
	}
	a.printf("removed %s, freed %s\n", e.Name, size(freed))
	switch {
	case e.External:
		a.printf("its file stays: %s\n", e.Path())
	case cached != "":
		a.printf("the download cache keeps a copy: %s (hearth rm --cache removes it too)\n", cached)
	}
	return nil
}

// cachedCopy is the folder of the download cache that the model's package was unpacked to; empty when there is none.
func cachedCopy(cacheDir string, e models.Entry) string {
	ref, err := hub.Parse(e.Source)
	if err != nil || ref.Scheme != "pypi" || ref.Version == "" || strings.ContainsRune(ref.Version, filepath.Separator) {
		return ""
	}
	dir := filepath.Join(cacheDir, "pypi", ref.Package, ref.Version)
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	return dir
}

func (a *app) cpCmd() *cobra.Command {
	return &cobra.Command{
		Use:               "cp MODEL NAME",
		ValidArgsFunction: a.completeModels(1),
		Aliases:           []string{"copy"},
		Short:             "give a model a second name",
		Long:              "Makes a second model of the same files. Where the file system has hard links it takes no space.",
		Args:              args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			store, err := a.store(cfg)
			if err != nil {
				return err
			}
			src, err := store.Resolve(argv[0])
			if err != nil {
				return err
			}
			e, err := store.Copy(cmd.Context(), src.Name, argv[1])
			if err != nil {
				return err
			}
			a.printf("copied %s to %s\n", src.Name, e.Name)
			return nil
		},
	}
}
