package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// completeModels offers the names of the store for the first n arguments of a command (n < 0: for all).
func (a *app) completeModels(n int) func(cmd *cobra.Command, argv []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, argv []string, prefix string) ([]string, cobra.ShellCompDirective) {
		none := cobra.ShellCompDirectiveNoFileComp
		if n >= 0 && len(argv) >= n {
			return nil, none
		}
		cfg, err := a.config(cmd)
		if err != nil {
			return nil, none
		}
		store, err := a.store(cfg)
		if err != nil {
			return nil, none
		}
		all, _, err := store.List()
		if err != nil {
			return nil, none
		}
		var names []string
		for _, e := range all {
			for _, name := range append([]string{e.Name}, e.Aliases...) {
				if strings.HasPrefix(name, prefix) {
					names = append(names, name)
				}
			}
		}
		return names, none
	}
}
