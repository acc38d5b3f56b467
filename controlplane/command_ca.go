package controlplane

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

func authorityFlags(flags *pflag.FlagSet, c *AuthorityConfig) {
	flags.StringVar(&c.PlugIn, "ca-plug-in", "", "directory with an externally created CA, which signs instead of the built-in one: ca-cert.pem, ca-key.pem, root-cert.pem, cert-chain.pem")
	flags.DurationVar(&c.TTL, "workload-cert-ttl", ca.DefaultTTL, "lifetime of workload certificates whose request specifies no lifetime")
	flags.DurationVar(&c.MaxTTL, "max-workload-cert-ttl", ca.DefaultMaxTTL, "maximum lifetime of workload certificates; requests for a longer lifetime receive this one")
	flags.DurationVar(&c.Overlap, "root-overlap", ca.DefaultOverlap, "time for which agents receive a new root before the authority signs with it")
	flags.DurationVar(&c.RotateBefore, "rotate-root-before", ca.DefaultRotateBefore, "remaining lifetime at which a root is replaced automatically; negative: never")
	flags.StringVar(&c.AuditFile, "ca-audit-log", "", "file that receives a JSON line for each issued or refused certificate; for unauthenticated clients, one line per minute")
	flags.StringVar(&c.DenyList, "deny-list", "", "YAML `file` with lists of accounts (NAMESPACE/SERVICE-ACCOUNT) and serials (of certificates, hexadecimal) that receive no certificate and no configuration; the control plane watches the file")
	flags.StringVar(&c.Issuer, "jwt-issuer", "", "additional issuer whose JWTs authenticate service accounts (subject system:serviceaccount:NAMESPACE:NAME)")
	flags.StringVar(&c.IssuerKeys, "jwt-issuer-keys", "", "file or URL of the JWK set of --jwt-issuer (default: the URL in the issuer's OpenID Connect discovery document)")
	flags.StringVar(&c.IssuerAudience, "jwt-audience", "", "audience that JWTs of --jwt-issuer must contain (default "+ca.TokenAudience+")")
}

// NewCACommand returns the command `pilotfish ca`.
func NewCACommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ca", Short: "Manage the mesh's certificate authority"}
	cmd.AddCommand(newRotateCommand())
	return cmd
}

func newRotateCommand() *cobra.Command {
	var dir string
	var force, look bool
	var overlap, maxTTL time.Duration
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Execute the next step of a root certificate rotation",
		Long: `Execute the next step of a rotation, which replaces the mesh's root certificate
without interrupting traffic:
  announce  create the new root; the control plane distributes it to every agent
            in addition to the old root
  activate  sign with the new root; not before --root-overlap after announce
  retire    remove the old root, when all certificates that it signed have
            expired

A control plane that uses the state directory applies each step within seconds.
It executes the steps after announce automatically when they are due. It also
starts a rotation automatically before a root expires.

After announce, every agent's trust bundle contains the new root. Agents that
verify the control plane with a file of root certificates need the new root in
that file before the old one is retired.`,
		Example: `  pilotfish ca rotate --look
  pilotfish ca rotate`,
		Args: usage.Args(),
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
				fmt.Fprintf(cmd.OutOrStdout(), "executed step: %s\n", step)
			}
			r, err := authority.Rotation()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "next step: %s, due at %s\n", r.Next, r.Due.Local().Format(time.RFC3339))
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&dir, "state-dir", "", "directory of the certificate authority (default "+defaultStateText+")")
	flags.BoolVar(&force, "force", false, "execute the step even if it is not due yet")
	flags.BoolVar(&look, "look", false, "show the next step, and do not execute it")
	flags.DurationVar(&overlap, "root-overlap", ca.DefaultOverlap, "time for which agents receive a new root before the authority signs with it")
	flags.DurationVar(&maxTTL, "max-workload-cert-ttl", ca.DefaultMaxTTL, "maximum lifetime of workload certificates, as set for the control plane; it determines when a root can be retired")
	return cmd
}
