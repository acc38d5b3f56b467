package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
)

// tokenSkew is the accepted difference between the clocks of this machine and the API server.
const tokenSkew = 2 * time.Minute

// LiveObjects looks up objects in the cached state of the cluster. The cache may be late or incomplete.
type LiveObjects interface {
	// FindPod returns the UID and the service account of a pod. found is false if the pod is unknown or terminating.
	FindPod(namespace, name string) (uid, account string, found bool)
	// FindAccount returns the UID of a service account. found is false if the account is unknown or terminating.
	FindAccount(namespace, name string) (uid string, found bool)
}

// tokenVerifier verifies tokens that the API server issued to service accounts. It accepts a token if a TokenReview
// would accept it: the API server has signed it, it is valid for an audience of the control plane, and the pod and the
// account to which it is bound exist. If the cached state does not prove this, a TokenReview decides. It implements
// ca.TokenVerifier.
type tokenVerifier struct {
	keys      *tokenKeys
	reviews   *tokenReviews
	live      LiveObjects
	audiences []string
	now       func() time.Time
}

// boundObject is an object to which a token is bound.
type boundObject struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// tokenClaims are the claims of a token of a service account.
type tokenClaims struct {
	jwt.Claims
	Kubernetes struct {
		Namespace string       `json:"namespace"`
		Account   *boundObject `json:"serviceaccount"`
		Pod       *boundObject `json:"pod"`
	} `json:"kubernetes.io"`
}

// VerifyToken implements ca.TokenVerifier.
func (v *tokenVerifier) VerifyToken(ctx context.Context, token string) (ca.VerifiedToken, error) {
	parsed, err := jwt.ParseSigned(token, tokenAlgorithms)
	if err != nil {
		return ca.VerifiedToken{}, errors.New("the token is not a JWT that an API server signed: mount a projected token of the pod's service account")
	}
	header := parsed.Headers[0]
	var claims tokenClaims
	if err := parsed.UnsafeClaimsWithoutVerification(&claims); err != nil {
		return ca.VerifiedToken{}, fmt.Errorf("the token's claims: %w", err)
	}
	// A token without a chance causes no request to the API server.
	if err := v.checkClaims(claims); err != nil {
		return ca.VerifiedToken{}, err
	}
	key, issuer, err := v.keys.lookup(ctx, header.KeyID)
	if errors.Is(err, errNoTokenKeys) {
		return v.reviews.verify(ctx, token)
	}
	if err != nil {
		return ca.VerifiedToken{}, err
	}
	if key.Algorithm != "" && key.Algorithm != header.Algorithm {
		return ca.VerifiedToken{}, fmt.Errorf("the token's algorithm is %.20q, but its key is for %.20q", header.Algorithm, key.Algorithm)
	}
	claims = tokenClaims{}
	if err := parsed.Claims(key.Key, &claims); err != nil {
		return ca.VerifiedToken{}, errors.New("the token's signature is invalid: another issuer signed it, or it was modified")
	}
	if err := v.checkClaims(claims); err != nil {
		return ca.VerifiedToken{}, err
	}
	if claims.Issuer != issuer {
		return v.reviews.verify(ctx, token) // an API server may accept several issuers
	}
	return v.checkBinding(ctx, token, claims)
}

// checkClaims returns an error if the token is expired, or not for the control plane.
func (v *tokenVerifier) checkClaims(claims tokenClaims) error {
	now := v.now()
	if claims.Expiry == nil {
		return errors.New("the token has no expiry (claim exp): mount a projected token of the pod's service account")
	}
	if end := claims.Expiry.Time(); !now.Before(end) {
		return fmt.Errorf("the token expired at %s: the kubelet replaces a projected token before that time", end.UTC().Format(time.RFC3339))
	}
	if !slices.ContainsFunc(claims.Audience, func(audience string) bool { return slices.Contains(v.audiences, audience) }) {
		return fmt.Errorf("the token is for the audience %s, but the control plane accepts only %q: set the audience of the projected token", quoteList(claims.Audience), v.audiences)
	}
	if err := claims.ValidateWithLeeway(jwt.Expected{Time: now}, tokenSkew); err != nil {
		return fmt.Errorf("the token is not valid at %s, the time of the control plane: %w", now.UTC().Format(time.RFC3339), err)
	}
	return nil
}

// checkBinding returns the service account of a token with a valid signature if the pod and the account to which it is
// bound exist.
func (v *tokenVerifier) checkBinding(ctx context.Context, token string, claims tokenClaims) (ca.VerifiedToken, error) {
	bound := claims.Kubernetes
	if bound.Account == nil || bound.Pod == nil {
		return v.reviews.verify(ctx, token)
	}
	if claims.Subject != accountPrefix+bound.Namespace+":"+bound.Account.Name {
		return ca.VerifiedToken{}, fmt.Errorf("the token's subject is %.300q, but the token is bound to the service account %.300q", claims.Subject, bound.Namespace+"/"+bound.Account.Name)
	}
	uid, account, found := v.live.FindPod(bound.Namespace, bound.Pod.Name)
	accountUID, accountFound := v.live.FindAccount(bound.Namespace, bound.Account.Name)
	if found && uid == bound.Pod.UID && account != bound.Account.Name {
		return ca.VerifiedToken{}, fmt.Errorf("the token is for the service account %q, but the pod %s/%s has the service account %q", bound.Account.Name, bound.Namespace, bound.Pod.Name, account)
	}
	if found && uid == bound.Pod.UID && accountFound && accountUID == bound.Account.UID {
		return ca.VerifiedToken{
			Namespace: bound.Namespace, ServiceAccount: bound.Account.Name,
			Proof: fmt.Sprintf("token of pod %s/%s (%s)", bound.Namespace, bound.Pod.Name, bound.Pod.UID),
		}, nil
	}
	verified, err := v.reviews.verify(ctx, token)
	if err != nil && !errors.Is(err, ca.ErrUnavailable) {
		return ca.VerifiedToken{}, fmt.Errorf("the pod %s/%s with the UID %s, or its service account, does not exist any more: %w", bound.Namespace, bound.Pod.Name, bound.Pod.UID, err)
	}
	return verified, err
}

// quoteList returns the quoted elements of a list from a client, with a limited length.
func quoteList(list []string) string {
	text := fmt.Sprintf("%+q", list)
	if len(text) > maxQuotedList {
		return text[:maxQuotedList] + "…"
	}
	return text
}

// maxQuotedList is the maximum length of a quoted list, in bytes.
const maxQuotedList = 300
