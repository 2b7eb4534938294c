#@ type: compute
#@ parents:
#@   - post
#@ corunning:
#@   ledger_mem:
#@     trans: ledger_mem
#@     type: rdma
"""Adds up the entries of every account."""
import ledger


def main(params, action):
    posted = params["post"][0]
    trans = action.get_transport("ledger_mem", "rdma")
    book = ledger.Ledger(trans, posted["entries"])
    book.load(posted["entries"])
    accounts = {}
    for i in range(posted["entries"]):
        account, amount, text = book.get(i)
        assert text == "entry %d €" % i, text
        accounts[str(account)] = accounts.get(str(account), 0) + amount
    return {"accounts": accounts, "early": posted["early"], "errors": posted["errors"]}
