package controlplane

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
)

func authorityFlags(flags *pflag.FlagSet, c *AuthorityConfig) {
	flags.StringVar(&c.PlugIn, "ca-plug-in", "", "directory with an authority that somebody else made: ca-cert.pem, ca-key.pem, root-cert.pem, cert-chain.pem")
	flags.DurationVar(&c.TTL, "workload-cert-ttl", ca.DefaultTTL, "life of workloads' certificates that are asked for without one")
	flags.DurationVar(&c.MaxTTL, "max-workload-cert-ttl", ca.DefaultMaxTTL, "longest life of workloads' certificates")
	flags.DurationVar(&c.Overlap, "root-overlap", ca.DefaultOverlap, "how long a new root is known to all before it signs")
	flags.DurationVar(&c.RotateBefore, "rotate-root-before", ca.DefaultRotateBefore, "how long before its end a root is replaced by a new one; negative: never by itself")
	flags.StringVar(&c.AuditFile, "ca-audit-log", "", "file that gets a line of JSON for each certificate that is issued or refused")
	flags.StringVar(&c.Issuer, "jwt-issuer", "", "issuer of JWTs that prove service accounts too (subject system:serviceaccount:NAMESPACE:NAME)")
	flags.StringVar(&c.IssuerKeys, "jwt-issuer-keys", "", "file or address of that issuer's keys, a JWK set (default: by its OpenID Connect discovery document)")
	flags.StringVar(&c.IssuerAudience, "jwt-audience", "", "what those JWTs are for (default "+ca.TokenAudience+")")
}

// NewCACommand is `pilotfish ca`.
func NewCACommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ca", Short: "Look after the mesh's certificate authority"}
	cmd.AddCommand(newRotateCommand())
	return cmd
}

func newRotateCommand() *cobra.Command {
	var dir string
	var force, look bool
	var overlap, maxTTL time.Duration
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Take the next step of replacing the mesh's root certificate, without an interruption",
		Long: `Takes the next step of replacing the mesh's root certificate by a new one:
  announce  makes the new root; the control plane tells every agent to trust it beside the old one
  activate  has the new root sign (--root-overlap after the announcement at the soonest)
  retire    ends the trust in the old root (when all that it signed has ended)

A control plane that runs on the state directory notices each step within seconds, and takes those that follow the
announcement by itself when they are due. It also begins a rotation by itself, before a root ends.

Agents that connect to the control plane by a file of roots need the new root in that file before the old one is
retired: it is in every agent's trust bundle from the announcement on.`,
		Example: `  pilotfish ca rotate --look
  pilotfish ca rotate`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			dir, err := stateDir(dir)
			if err != nil {
				return err
			}
			authority, err := ca.Load(dir, ca.Options{MustExist: true, Overlap: overlap, MaxTTL: maxTTL})
			if err != nil {
				return err
			}
			if !look {
				step, err := authority.Rotate(force)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "done: %s\n", step)
			}
			r, err := authority.Rotation()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "next: %s, due %s\n", r.Next, r.Due.Local().Format(time.RFC3339))
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&dir, "state-dir", "", "directory of the certificate authority (default "+defaultStateText+")")
	flags.BoolVar(&force, "force", false, "take the step before it is due")
	flags.BoolVar(&look, "look", false, "only say which step is next")
	flags.DurationVar(&overlap, "root-overlap", ca.DefaultOverlap, "how long a new root is known to all before it signs")
	flags.DurationVar(&maxTTL, "max-workload-cert-ttl", ca.DefaultMaxTTL, "longest life of workloads' certificates")
	return cmd
}
