"""Word lists behind the label classes, written for this project; imports no torch.

Closed classes are meant to be complete for English prose from 1700 on; open ones (place, person name, body part, ...)
are in `open_words.py`, and `lexicon.py` adds inflected forms and morphology. A word may stand in several lists.
"""

from __future__ import annotations

from legible_core.naming.open_words import ADJECTIVES, NOUNS, VERBS, split

__all__ = [
    "ADJECTIVES", "CLOSED", "COMPARATIVES", "IRREGULAR", "NOT_ADVERB", "NOT_COMPARATIVE", "NOT_PARTICIPLE",
    "NOT_PROGRESSIVE", "NOT_SUPERLATIVE", "NOUNS", "SUPERLATIVES", "VERBS", "split",
]  # fmt: skip

# ---- closed classes -------------------------------------------------------------------------------------------------

CLOSED: dict[str, frozenset[str]] = {
    "article": split("a an the"),
    "determiner": split(
        "a an the this that these those my your his her its our their thy thine mine some any no every each either "
        "neither another other such what which whose whatever whichever all both half several many few much little "
        "more most enough certain same"
    ),
    "demonstrative": split("this that these those here there yonder such thus hither thither"),
    "possessive": split("my your his her its our their whose mine yours hers ours theirs thy thine 's s' one's"),
    "negation": split(
        "no not never none nobody nothing nowhere neither nor cannot 't without n't non un nay hardly scarcely "
        "barely ain won don didn doesn isn wasn weren couldn wouldn shouldn hasn haven hadn needn mustn"
    ),
    "modal": split(
        "can could may might must shall should will would ought need dare cannot 'll 'd won couldn wouldn shouldn "
        "mightn mustn needn shan canst couldst mayst shalt wilt wouldst shouldst"
    ),
    "copula": split(
        "be am is are was were been being 's 're 'm isn wasn weren aren art wert beest seem seems seemed become "
        "became becomes"
    ),
    "perfect auxiliary": split("have has had having 've 'd hasn haven hadn hast hath hadst"),
    "do auxiliary": split("do does did doing done don doesn didn dost doth didst"),
    "pronoun": split(
        "i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its "
        "itself we us our ours ourselves they them their theirs themselves thou thee thy thine thyself ye who whom "
        "whose one oneself somebody someone something anybody anyone anything nobody nothing everybody everyone "
        "everything none whoever whatever another each other others"
    ),
    "subject pronoun": split("i he she we they thou who ye you it one"),
    "object pronoun": split("me him her us them thee whom you it"),
    "reflexive pronoun": split(
        "myself yourself himself herself itself ourselves yourselves themselves thyself oneself"
    ),
    "indefinite pronoun": split(
        "somebody someone something anybody anyone anything nobody nothing everybody everyone everything none "
        "somewhere anywhere everywhere nowhere somehow anyhow aught naught whoever whatever another others"
    ),
    "question word": split(
        "who whom whose what which when where why how whether whatever whoever whichever whenever wherever wherefore "
        "whence whither whereby wherein whereupon"
    ),
    "preposition": split(
        "of in to for with on at by from about as into like through after over between out against during without "
        "before under around among amongst within along across behind beyond up down off near above below beside "
        "besides beneath toward towards upon onto since until till despite except concerning regarding throughout "
        "amid amidst underneath via per than unto round past opposite inside outside save notwithstanding"
    ),
    "conjunction": split("and or but nor yet so for either neither both whether & than as though because if while"),
    "coordinator": split("and or but nor yet so & either neither both"),
    "subordinator": split(
        "if because although though while whilst when whenever where wherever since unless until till before after "
        "as that whether lest once whereas provided supposing so than inasmuch whereupon albeit except directly"
    ),
    "relative word": split("who whom whose which that where when whereby wherein whereof whence whereupon what"),
    "discourse opener": split(
        "well now then there here so oh ah yes no indeed however therefore meanwhile besides moreover nevertheless "
        "still thus hence perhaps surely certainly suddenly presently finally again also first secondly lastly yet "
        "otherwise accordingly consequently furthermore anyhow anyway evidently apparently fortunately unfortunately "
        "possibly probably naturally likewise alas why but and next sometimes once later afterwards instead nay o "
        "behold lo"
    ),
    "interjection": split(
        "oh ah o eh ha alas hurrah hush hullo hello halloa pooh bah well why yes no aye ay nay dear pray please "
        "bravo farewell goodbye good-bye amen hurray ho hey hm humph lord heavens goodness gracious"
    ),
    "NPI licensor": split(
        "no not never none nobody nothing nowhere neither nor without hardly scarcely barely rarely seldom few "
        "little if unless whether before than any every only doubt deny refuse fail forbid 't cannot don didn doesn "
        "won couldn wouldn isn wasn ever too"
    ),
    "particle": split("up down out off in on over away back forth along about through by round aside apart ahead"),
    "degree word": split(
        "very so too quite rather more most less least much far such as how enough almost nearly hardly scarcely "
        "somewhat extremely exceedingly perfectly entirely completely wholly utterly altogether fully absolutely "
        "really truly deeply highly greatly particularly especially remarkably slightly equally even"
    ),
    "focus word": split(
        "only even also just merely simply alone solely especially particularly too either chiefly mainly"
    ),
    "frequency": split(
        "always never often sometimes seldom rarely usually frequently occasionally ever again once twice daily "
        "weekly constantly continually perpetually generally commonly repeatedly regularly"
    ),
    "number": split(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million "
        "billion dozen hundreds thousands millions dozens score first second third fourth fifth sixth seventh eighth "
        "ninth tenth once twice thrice half quarter double single couple pair"
    ),
    "quantity": split(
        "all some any many much few several most more less little enough half plenty lot lots deal number quantity "
        "amount dozen score hundred thousand million percent per pair couple bit piece part whole portion share "
        "quarter rest majority multitude crowd mass heap handful pounds shillings pence dollars miles feet inches "
        "yards tons ounces acres gallons pints degrees double single every each both none total average"
    ),
}

# ---- inflection that no rule gives ----------------------------------------------------------------------------------

# base: (past, past participle); the -s and -ing forms follow the rules.
IRREGULAR: dict[str, tuple[str, str]] = {
    line.split()[0]: (line.split()[1], line.split()[-1])
    for line in """
    arise arose arisen|awake awoke awoken|bear bore borne|beat beat beaten|become became become|begin began begun
    bend bent bent|bind bound bound|bite bit bitten|bleed bled bled|blow blew blown|break broke broken
    breed bred bred|bring brought brought|build built built|burn burnt burnt|burst burst burst|buy bought bought
    cast cast cast|catch caught caught|choose chose chosen|cling clung clung|come came come|cost cost cost
    creep crept crept|cut cut cut|deal dealt dealt|dig dug dug|do did done|draw drew drawn|dream dreamt dreamt
    drink drank drunk|drive drove driven|dwell dwelt dwelt|eat ate eaten|fall fell fallen|feed fed fed
    feel felt felt|fight fought fought|find found found|flee fled fled|fling flung flung|fly flew flown
    forbid forbade forbidden|forget forgot forgotten|forgive forgave forgiven|freeze froze frozen|get got gotten
    give gave given|go went gone|grow grew grown|hang hung hung|have had had|hear heard heard|hide hid hidden
    hit hit hit|hold held held|hurt hurt hurt|keep kept kept|kneel knelt knelt|know knew known|lay laid laid
    lead led led|lean leant leant|leap leapt leapt|learn learnt learnt|leave left left|lend lent lent|let let let
    lie lay lain|light lit lit|lose lost lost|make made made|mean meant meant|meet met met|pay paid paid|put put put
    read read read|rend rent rent|ride rode ridden|ring rang rung|rise rose risen|run ran run|say said said
    see saw seen|seek sought sought|sell sold sold|send sent sent|set set set|shake shook shaken|shed shed shed
    shine shone shone|shoot shot shot|show showed shown|shrink shrank shrunk|shut shut shut|sing sang sung
    sink sank sunk|sit sat sat|sleep slept slept|slide slid slid|smell smelt smelt|speak spoke spoken
    spend spent spent|spin spun spun|spread spread spread|spring sprang sprung|stand stood stood|steal stole stolen
    stick stuck stuck|sting stung stung|strike struck struck|strive strove striven|swear swore sworn
    sweep swept swept|swim swam swum|swing swung swung|take took taken|teach taught taught|tear tore torn
    tell told told|think thought thought|throw threw thrown|understand understood understood
    undertake undertook undertaken|wake woke woken|wear wore worn|weep wept wept|win won won|wind wound wound
    withdraw withdrew withdrawn|wring wrung wrung|write wrote written|behold beheld beheld
    overcome overcame overcome|mistake mistook mistaken
    """.replace("\n", "|").split("|")
    if line.strip()
}

COMPARATIVES = split(
    "more less better worse further farther elder older younger greater smaller larger longer shorter higher lower "
    "deeper nearer closer stronger weaker easier harder earlier later sooner faster quicker slower richer poorer "
    "happier brighter darker lighter heavier wider broader finer nobler wiser safer softer warmer colder clearer "
    "dearer bolder kinder sweeter thicker thinner graver sharper latter former inferior superior lesser rather than "
    "louder different fewer taller truer simpler gentler milder newer bigger"
)
SUPERLATIVES = split(
    "most least best worst furthest farthest eldest oldest youngest greatest smallest largest longest shortest "
    "highest lowest deepest nearest closest strongest weakest easiest hardest earliest latest fastest richest "
    "poorest happiest brightest darkest finest noblest wisest safest slightest dearest first last utmost very only "
    "foremost utter supreme sweetest kindest loveliest prettiest simplest cleverest bravest truest chief main "
    "biggest tallest fullest"
)
# Words in -er, -est, -ed, -ing or -ly that are none of what the ending suggests.
NOT_COMPARATIVE = split(
    "her other never ever over under after father mother brother sister daughter water letter matter manner number "
    "order power paper river summer winter dinner supper silver corner finger figure master member officer danger "
    "character however whatever together either neither rather another whether further consider remember answer "
    "enter wonder utter offer suffer differ discover gather later center former latter anger chamber shoulder "
    "soldier stranger trouser weather leather feather bitter butter chapter quarter proper clever tender eager sober "
    "lawyer prayer flower tower shower lover ladder murder thunder winner sinner cover inner outer upper prefer "
    "deliver recover september october november december trader leader reader speaker teacher farmer prisoner "
    "messenger traveller owner writer banker cooper butler miller major user"
)
NOT_SUPERLATIVE = split(
    "interest forest honest modest request suggest guest rest west nest test chest breast priest harvest protest "
    "contest arrest quest jest vest best digest invest earnest crest lest zest pest conquest manifest tempest"
)
NOT_ADVERB = split(
    "only family lovely lonely early holy ugly silly july italy belly reply apply supply fly lily ally rely assembly "
    "daily melancholy friendly likely elderly sally jelly bully folly lively deadly comply multiply imply emily "
    "molly polly nelly"
)
NOT_PARTICIPLE = split(
    "need feed seed speed deed bed red indeed hundred sacred wicked naked wretched shed exceed proceed succeed breed "
    "weed greed creed bleed sled led fed wed kindred hatred ted fred ned alfred agreed"
)
NOT_PROGRESSIVE = split(
    "thing king ring sing bring spring string wing evening morning nothing something anything everything during "
    "ceiling being shilling darling pudding sting swing fling cling wring building wedding feeling"
)
